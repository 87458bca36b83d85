"""The shape of the source: what may import what, how long things may be, what they may be called.

One test for each rule, over all files: it lists everything that breaks the rule.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src" / "todoku"
FILES = sorted(ROOT.rglob("*.py"))

# Lowest first. A layer may import the layers before it, never its siblings and never what comes after.
LAYERS = (
    ("core",),
    ("store",),
    ("engine", "destinations", "sources"),
    ("capture",),
    ("shells",),
    ("backend",),
    ("app",),
    ("api",),
    ("web",),
    ("integrations", "client"),
    ("daemon",),
    ("cli",),
    ("testing", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

IMPORTERS = ("import_module", "__import__", "run_module", "find_spec")
"""Functions that import the module whose name they are given."""

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


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def layer_of(path: Path) -> str:
    """`core` for core/decision.py, `app` for app.py, `__init__` for the package's own file."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """(line, level, dotted name) of each import, one for each name that `from` takes."""
    for node in ast.walk(parsed(path)):
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
            yield f"{place(path, line)}: name the module, not the package: {name}"
        elif there != here and RANK[there] >= RANK[here]:
            yield f"{place(path, line)}: {here} may not import {there}"


def test_there_is_something_to_check() -> None:
    assert any(layer_of(path) == "core" for path in FILES)


def test_every_part_has_a_layer() -> None:
    assert {layer_of(path) for path in FILES} <= {"__init__", *RANK}


def test_imports_are_absolute() -> None:
    assert [place(path, line) for path in FILES for line, level, _ in imports(path) if level] == []


def test_imports_go_down() -> None:
    assert [found for path in FILES for found in illegal(path)] == []


def dotted_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of each string that is the name of a module of todoku, or of something in one (`module:name`)."""
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(r"todoku(\.[a-z_]+)+(:\w+)?", text):
                yield node.lineno, text.partition(":")[0]
            case ast.Call(args=[ast.Constant(value="todoku"), *_]) if ast.unparse(node.func).endswith(IMPORTERS):
                yield node.lineno, "todoku.__main__"
            case _:
                pass


def upward_names(path: Path) -> Iterator[str]:
    """Each string in `path` that names a module of a layer above it: the import linter does not see those."""
    here = layer_of(path)
    for line, name in dotted_names(path):
        there = name.split(".")[1]
        if there in RANK and here in RANK and RANK[there] > RANK[here]:
            yield f"{place(path, line)}: {here} may not name {name}"


def test_imports_by_string_go_down_too() -> None:
    """A layer that needs a function of a layer above it is given the function: todoku/shells.py."""
    assert [found for path in FILES for found in upward_names(path)] == []


@pytest.mark.parametrize(
    "source",
    [
        'import_module("todoku.api.ingest").ingest_app(box)', '__import__("todoku.cli.main")',
        'runpy.run_module("todoku", run_name="__main__")', 'import_module("todoku")',
        'NAME = "todoku.daemon.child"', 'load("todoku.cli.main:main")',
    ],
)  # fmt: skip
def test_an_import_by_string_is_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "app.py"
    monkeypatch.setitem(globals(), "parsed", lambda _: ast.parse(source))
    assert list(upward_names(path)) != []


def backends_named(path: Path) -> Iterator[str]:
    """Each import of a backend by somebody who is neither that backend nor the app."""
    for backend in ("sqlite", "postgres"):
        if layer_of(path) == "backend" or ROOT / "store" / backend in path.parents:
            continue
        dotted = f"todoku.store.{backend}"
        for line, _, name in imports(path):
            if f"{name}.".startswith(f"{dotted}."):
                yield f"{place(path, line)} imports {dotted}"


def test_only_one_module_names_a_backend() -> None:
    """A backend may import itself; everything else asks `todoku.backend` for a database."""
    assert [found for path in FILES for found in backends_named(path)] == []


def test_the_core_is_pure() -> None:
    """No I/O, no clock, no randomness: whatever the core needs is handed to it."""
    core = [path for path in FILES if layer_of(path) == "core"]
    assert [
        f"{place(path, line)} imports {name}"
        for path in core
        for line, _, name in imports(path)
        if name.split(".")[0] in IMPURE
    ] == []


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert [f"{place(path, lines)} is its end" for path, lines in lengths.items() if lines > LONGEST_FILE] == []


def long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        if lines > LONGEST_FUNCTION:
            yield f"{place(path, node.lineno)}: {node.name} has {lines} lines"


def test_functions_are_short() -> None:
    """Counted without the docstring: a contract may be long, the code that keeps it may not."""
    assert [found for path in FILES for found in long_functions(path)] == []


def test_names_say_something() -> None:
    named = {path: {part.lower().strip("_") for part in path.relative_to(ROOT).with_suffix("").parts} for path in FILES}
    assert [str(path.relative_to(ROOT)) for path, parts in named.items() if parts & VAGUE] == []


WITHOUT_EXTRAS = """
import sys
for name in ("aiohttp", "httptools", "multidict", "prometheus_client", "psycopg", "starlette", "uvicorn", "yarl"):
    sys.modules[name] = None
import todoku, todoku.cli.main, todoku.testing
"""


def test_the_base_needs_no_extra() -> None:
    """A program that only publishes installs none: what needs one is imported where it is used."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
