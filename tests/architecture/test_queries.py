"""SQL is read as SQL: each query is a named block that says why it is safe."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

STORE = Path(__file__).resolve().parents[2] / "src" / "todoku" / "store"
FILES = sorted(STORE.glob("*/*.sql"))
NAME = re.compile(r"^--\s*name:\s*(\S+)\s*$")

each_file = pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.name}" for path in FILES])


def blocks(path: Path) -> list[tuple[str, list[str]]]:
    """(name, the lines below it) for each block of a file, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := NAME.match(line):
            found.append((match[1], []))
        elif found:
            found[-1][1].append(line)
    return found


def test_both_backends_have_the_same_files() -> None:
    names = {path.parent.name: [other.name for other in FILES if other.parent == path.parent] for path in FILES}
    assert names["sqlite"] == names["postgres"]
    assert set(names) == {"sqlite", "postgres"}


@pytest.mark.parametrize("name", sorted({path.stem for path in FILES}))
def test_every_file_stands_beside_the_module_that_uses_it(name: str) -> None:
    assert (STORE / f"{name}.py").exists()


@each_file
def test_every_query_says_why_it_is_safe(path: Path) -> None:
    def explained(lines: list[str]) -> bool:
        return bool(lines) and len(lines[0].removeprefix("--").strip()) > 10 and lines[0].startswith("--")

    assert [name for name, lines in blocks(path) if not explained(lines)] == []


@each_file
def test_every_query_has_a_statement(path: Path) -> None:
    def statement(lines: list[str]) -> bool:
        return any(line.strip() and not line.lstrip().startswith("--") for line in lines)

    assert [name for name, lines in blocks(path) if not statement(lines)] == []


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_no_name_is_used_twice(backend: str) -> None:
    names = Counter(name for path in FILES if path.parent.name == backend for name, _ in blocks(path))
    assert [name for name, count in names.items() if count > 1] == []


@each_file
def test_nothing_stands_outside_a_block(path: Path) -> None:
    """Above the first name there are only comments: a statement there would never be loaded."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if NAME.match(line):
            return
        assert not line.strip() or line.startswith("--"), line
