"""The shape of the source: what may import what, how long things may be, what they may be called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src" / "todoku"
FILES = sorted(ROOT.rglob("*.py"))

# Lowest first. A layer may import the layers before it, never its siblings and never what comes after.
LAYERS = (
    ("core",),
    ("store",),
    ("engine", "destinations", "sources", "relay"),
    ("app",),
    ("api", "web"),
    ("integrations", "client"),
    ("daemon",),
    ("cli",),
    ("testing", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

IMPURE = {
    "asyncio",
    "logging",
    "os",
    "psycopg",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}
VAGUE = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

LONGEST_FILE = 400
LONGEST_FUNCTION = 40

each_file = pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])


def layer_of(path: Path) -> str:
    """`core` for core/decide.py, `app` for app.py, `__init__` for the package's own file."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """(line, level, dotted name) of each import, one for each name that `from` takes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, f"{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name


def illegal(path: Path) -> Iterator[str]:
    """Each import of `path` that goes up, or sideways, or to the package as a whole."""
    here = layer_of(path)
    for line, _, name in imports(path):
        package, *rest = name.split(".")
        if package != "todoku" or here not in RANK:
            continue
        there = rest[0] if rest else ""
        if there not in RANK:
            yield f"{path.name}:{line}: name the module, not the package: {name}"
        elif there != here and RANK[there] >= RANK[here]:
            yield f"{path.name}:{line}: {here} may not import {there}"


def test_there_is_something_to_check() -> None:
    assert any(layer_of(path) == "core" for path in FILES)


def test_every_part_has_a_layer() -> None:
    assert {layer_of(path) for path in FILES} <= {"__init__", *RANK}


@each_file
def test_imports_are_absolute(path: Path) -> None:
    assert [line for line, level, _ in imports(path) if level] == []


@each_file
def test_imports_go_down(path: Path) -> None:
    assert list(illegal(path)) == []


@each_file
def test_only_app_names_a_backend(path: Path) -> None:
    """A backend may import itself; everybody else asks `todoku.app` for a Store."""
    for backend in ("sqlite", "postgres"):
        if layer_of(path) == "app" or ROOT / "store" / backend in path.parents:
            continue
        dotted = f"todoku.store.{backend}"
        named = [line for line, _, name in imports(path) if f"{name}.".startswith(f"{dotted}.")]
        assert named == [], f"{path.name} imports {dotted}"


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) == "core"], ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    """No I/O, no clock, no randomness: whatever the core needs is handed to it."""
    assert {name.split(".")[0] for _, _, name in imports(path)} & IMPURE == set()


@each_file
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@each_file
def test_functions_are_short(path: Path) -> None:
    """Counted without the docstring: a contract may be long, the code that keeps it may not."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        assert lines <= LONGEST_FUNCTION, f"{path.name}:{node.lineno}: {node.name} has {lines} lines"


@each_file
def test_names_say_something(path: Path) -> None:
    assert not VAGUE & {part.lower().strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}
