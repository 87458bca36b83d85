"""What the README promises and leads to: every page of the docs, and every extra of the package."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.test_layers import FILES, parsed
from todoku.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = {
    name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "all"
}

IMPORTED_AS = {
    "aio-pika": "aio_pika",
    "google-auth": "google.auth",
    "google-cloud-pubsub": "google.cloud",
    "jsonschema-rs": "jsonschema_rs",
    "nats-py": "nats",
    "opensearch-py": "opensearchpy",
    "opentelemetry-api": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "sentry-sdk": "sentry_sdk",
}
"""Distributions that are imported by another name than their own."""


def links() -> set[str]:
    return set(re.findall(r"\]\(([^)#\s]+)", README))


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_leads_to_the_page(page: str) -> None:
    """By a link to the page, or, where pages are a numbered series, to its directory."""
    directory = f"{page.rpartition('/')[0]}/"
    assert page in links() or (directory != "docs/" and directory in links())


def anchors(page: Path) -> set[str]:
    """The fragments by which GitHub links to the headings of a page."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_to_headings() -> None:
    broken = []
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES]:
        page = ROOT / name
        for target, fragment in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            if "://" not in target and fragment not in anchors(page.parent / target if target else page):
                broken.append(f"{name}: {target}#{fragment}")
    assert broken == []


@cache
def imported() -> frozenset[str]:
    """Every module that the source imports, and every package above it; also those that are loaded by name."""
    names = set()
    for path in FILES:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=str(module)):
                    names.add(module)
                case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
                    names.add(name)
                case ast.Assign(targets=[ast.Name(id="module")], value=ast.Constant(value=str(name))):
                    names.add(name)  # of a broker's class: its client library is loaded with the first message
                case _:
                    pass
    return frozenset(".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2))


def modules(requirement: str) -> str:
    name = canonicalize_name(Requirement(requirement).name)
    return IMPORTED_AS.get(name, name.replace("-", "_"))


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_used(extra: str) -> None:
    used = [modules(requirement) in imported() for requirement in EXTRAS[extra]]
    assert any(used) or extra == "vault"  # which needs nothing: docs/decisions/0001-dependencies.md


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_readme_names_the_extra(extra: str) -> None:
    assert f"`{extra}`" in README or f"todoku[{extra}]" in README


def test_all_means_all() -> None:
    everything = [Requirement(one) for one in PROJECT["optional-dependencies"]["all"]]
    assert {extra for requirement in everything for extra in requirement.extras} == set(EXTRAS)


# ---------------------------------------------------------------------------------------------------- architecture

SOURCE = ROOT / "src" / "todoku"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_the_architecture_lists_the_packages_there_are() -> None:
    rows = [line.split("|")[1] for line in ARCHITECTURE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w/]+(?:/|\.py))`", row)}
    there = {path.relative_to(SOURCE).parent.as_posix() + "/" for path in SOURCE.glob("*/__init__.py")}
    engine = {path.relative_to(SOURCE).parent.as_posix() + "/" for path in SOURCE.glob("engine/*/__init__.py")}
    assert named == there | engine | {"app.py", "backend.py"}


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_the_page_names_files_that_exist(page: str) -> None:
    """Paths of modules, from the package or from the root of the repository. `NNNN` and `<…>` are to be filled in."""
    text = (ROOT / page).read_text("utf-8")
    names = set(re.findall(r"(?<![\w/<>.])(?:\w+/)+\w+\.(?:py|sql|toml|md)(?!\w)", text))
    missing = {name for name in names if not (SOURCE / name).exists() and not (ROOT / name).exists()}
    assert sorted(name for name in missing if "NNNN" not in name) == []


# ------------------------------------------------------------------------------------------------------- commands

COMMAND = re.compile(r"(?:`|^ {4}|^\$ )(?:[A-Z_]+=\S+ )*todoku ([a-z][^`\n]*)", re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    """The commands `todoku …` that pages show: in a code span, or on a line of their own."""
    found = []
    for name in ["README.md", "CONTRIBUTING.md", *PAGES]:
        for words in COMMAND.findall((ROOT / name).read_text("utf-8")):
            found.append((name, re.split(r"\s+", words.partition(" #")[0].strip())))
    return found


def unknown(words: list[str]) -> str | None:
    """What of a command the program does not know: its name, or an option. None: it knows all."""
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        name, *words = words
        if (below := command.get_command(click.Context(command), name.strip("…,;:.)"))) is None:
            return name
        command = below
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    given = [option for word in words for option in re.findall(r"^\[?(--[a-z-]+)", word)]
    return next((option for option in given if option not in known), None)


def test_the_commands_on_the_pages_exist_with_their_options() -> None:
    shown = commands()
    assert len(shown) > 100
    assert (
        sorted({f"{page}: todoku {' '.join(words)}: {what}" for page, words in shown if (what := unknown(words))}) == []
    )
