"""SEC-11: names that a library does not promise are used in one module for each library, and every dependency that is
imported is declared, with a floor, and with a ceiling where such names are used."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.test_layers import FILES, ROOT, imports, parsed, place
from tests.support.floors import floor
from todoku.core.version_range import VersionRange

ONE_MODULE = {
    "aiohttp": "destinations/aiohttp_protocol.py",
    "aiokafka": "destinations/aiokafka_producer.py",
    "uvicorn": "api/uvicorn_protocol.py",
}
"""The only module that takes private names from each library."""

PUBLIC = {"aiohttp", "aiohttp.abc", "uvicorn"}
"""Modules of theirs that anybody may import from: what they export is documented."""

OF_PYTHON = {"os._exit", "sys._current_frames", "sys._getframe"}
"""Documented by Python itself."""

OF_DRIVERS = {"store/join.py"}
"""Asks a caller's own connection, of a driver that is no dependency of ours, for what it does not tell."""

NOT_DECLARED = {"asgiref", "pydantic", "pydantic_core", "fastapi", "pytest"}
"""Used only where the caller's own program has it: it comes with Django, or it is what is being integrated with."""

PROJECT = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    canonicalize_name(requirement.name): requirement
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, texts)
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def private_imports(path: Path) -> Iterator[str]:
    """Each import of a module, or of a name, that the library does not document."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        else:
            continue
        for module, name in names:
            if module.split(".")[0] in ONE_MODULE and (module not in PUBLIC or name.startswith("_")):
                yield f"{place(path, node.lineno)} takes {name or 'it'} from {module}"


def test_SEC_11_private_modules_of_a_library_are_imported_in_one_place() -> None:
    others = [path for path in FILES if relative(path) not in ONE_MODULE.values()]
    assert [found for path in others for found in private_imports(path)] == []


def own_private_names() -> set[str]:
    """Every name with an underscore that todoku itself defines: functions, classes, attributes, slots."""
    found: set[str] = set()
    for path in FILES:
        names_slots = relative(path) not in ONE_MODULE.values()  # those name attributes of others, to look for them
        for node in ast.walk(parsed(path)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Constant(value=str(name)) if names_slots:
                    found.add(name)
                case _:
                    pass
    return {name for name in found if name.startswith("_")}


def foreign_private_attributes(path: Path, own: set[str]) -> Iterator[str]:
    """Each private attribute that todoku does not define itself, be it of another object or inherited."""
    for node in ast.walk(parsed(path)):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr not in own
            and ast.unparse(node) not in OF_PYTHON
        ):
            yield f"{place(path, node.lineno)} asks for {ast.unparse(node)}"


def test_SEC_11_private_attributes_of_a_library_are_used_in_one_place() -> None:
    own = own_private_names()
    others = [path for path in FILES if relative(path) not in {*ONE_MODULE.values(), *OF_DRIVERS}]
    assert [found for path in others for found in foreign_private_attributes(path, own)] == []


@pytest.mark.parametrize(("library", "module"), ONE_MODULE.items())
def test_SEC_11_the_one_module_is_needed_and_its_library_is_capped(library: str, module: str) -> None:
    """A module without private names would be a detour; a library with them may change in its next major version."""
    path = ROOT / module
    assert [*private_imports(path), *foreign_private_attributes(path, own_private_names())] != []
    specifier = DECLARED[library].specifier
    lowest = Version(floor(DECLARED[library]))
    assert specifier.contains(lowest)
    assert not specifier.contains(Version(f"{lowest.major + 1}")), f"{library} needs a ceiling: <{lowest.major + 1}"
    import_module(library)


@pytest.mark.parametrize(("library", "module"), ONE_MODULE.items())
def test_SEC_11_the_one_module_names_the_versions_that_were_tested(library: str, module: str) -> None:
    """From the floor of pyproject.toml to the pinned version, and not as far as the next minor version."""
    found = import_module(f"todoku.{module.removesuffix('.py').replace('/', '.')}")
    tested: VersionRange = found.TESTED
    assert tested.lowest == Version(floor(DECLARED[library])).release
    assert tested.includes(floor(DECLARED[library]))
    pinned = pinned_version(library)
    assert tested.includes(str(pinned))
    assert tested.below == (pinned.major, pinned.minor + 1), "a minor version more: run the tests with it, then say so"
    assert callable(found.is_tested), "what is outside of the range falls back on the public interface"


def pinned_version(library: str) -> Version:
    lines = (ROOT.parents[1] / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
    (pin,) = [line.split("==")[1].split()[0] for line in lines if line.startswith(f"{library}==")]
    return Version(pin)


@pytest.mark.parametrize(
    ("version", "included"),
    [
        ("3.13.3", False), ("3.13.4", True), ("3.13.10", True), ("3.14", True), ("3.14.99", True), ("3.15.0", False),
        ("3.15.0a1", False), ("4.0", False), ("3.14.0rc1", True), ("3.14.5.dev0+local", True), ("", False),
        ("unknown", False),
    ],
)  # fmt: skip
def test_SEC_11_a_version_is_compared_by_its_numbers(version: str, included: bool) -> None:
    assert VersionRange((3, 13, 4), (3, 15)).includes(version) is included


def test_SEC_11_whoever_uses_the_one_module_asks_whether_it_was_tested() -> None:
    """Not itself, or not alone: the module that chooses between the private and the public way does."""
    asking = {relative(path) for path in FILES if "is_tested" in path.read_text(encoding="utf-8")}
    assert asking >= {
        *ONE_MODULE.values(), "destinations/http_exchange.py", "api/ingest_fast_path.py",
    }  # fmt: skip


def test_SEC_11_what_is_imported_is_declared() -> None:
    distributions = {
        "argon2": "argon2-cffi", "markupsafe": "jinja2",
        "opentelemetry": "opentelemetry-api", "psycopg_pool": "psycopg",
    }  # fmt: skip
    found = {
        name.split(".")[0]: place(path, line)
        for path in FILES
        for line, _, name in imports(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, *NOT_DECLARED, "todoku"}
    }
    assert {
        name: where for name, where in found.items() if canonicalize_name(distributions.get(name, name)) not in DECLARED
    } == {}


def test_SEC_11_every_dependency_has_one_floor() -> None:
    for requirement in DECLARED.values():
        if requirement.name != "todoku":
            floor(requirement)
