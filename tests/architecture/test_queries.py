"""SQL is read as SQL: each query is a named block that says why it is safe."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

STORE = Path(__file__).resolve().parents[2] / "src" / "todoku" / "store"
FILES = sorted(STORE.glob("*/queries.sql"))
NAME = re.compile(r"^--\s*name:\s*(\S+)\s*$")

each_file = pytest.mark.parametrize("path", FILES, ids=[path.parent.name for path in FILES])


def blocks(path: Path) -> list[tuple[str, list[str]]]:
    """(name, the lines below it) for each block of a queries.sql, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := NAME.match(line):
            found.append((match[1], []))
        elif found:
            found[-1][1].append(line)
    return found


def test_both_backends_have_queries() -> None:
    assert {path.parent.name for path in FILES} == {"sqlite", "postgres"}


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


@each_file
def test_no_name_is_used_twice(path: Path) -> None:
    assert [name for name, count in Counter(name for name, _ in blocks(path)).items() if count > 1] == []


@each_file
def test_nothing_stands_outside_a_block(path: Path) -> None:
    """Above the first name there are only comments: a statement there would never be loaded."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if NAME.match(line):
            return
        assert not line.strip() or line.startswith("--"), line
