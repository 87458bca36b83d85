"""Every code in the source and the docs is explained in docs/glossary.md, which needs no other document to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
CODE = re.compile(r"(?<![\w-])(?:[HIR][1-9]\d?|(?:SEC|MEND|W|S\d)-[1-9]\d*)(?![\w-])")
ROW = re.compile(rf"^\| ({CODE.pattern}) \|", re.MULTILINE)
OUTSIDE_DOCUMENT = re.compile(r"\bDESIGN\b|\bREQUIREMENTS\b|protocol-review")
FAMILIES = {"I": 13, "H": 29, "R": 24}
"""Families that are listed whole, and how many codes each has."""


def files(*directories: str) -> Iterator[Path]:
    """Every text file below these directories that people write."""
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.suffix in {".py", ".sql", ".md"}:
                yield path


def used(paths: Iterator[Path]) -> Iterator[tuple[str, str]]:
    """(code, file and line) of each code in `paths`, the glossary itself left out."""
    for path in paths:
        if path == GLOSSARY:
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            for code in CODE.findall(line):
                yield code, f"{path.relative_to(ROOT)}:{number}"


def explained() -> list[str]:
    return ROW.findall(GLOSSARY.read_text("utf-8"))


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("sorted (H11), and ledger first (I5).", ["H11", "I5"]),
        ("SEC-12, MEND-1 and W-103; S4-31…S4-34", ["SEC-12", "MEND-1", "W-103", "S4-31", "S4-34"]),
        ("H1+ a variation; `H10`", ["H1", "H10"]),
        ("AES-256, SHA-256, UTF-8, HTTP1, I18N, CLASS-1, i3_one_owner", []),
    ],
)
def test_codes_are_recognised(text: str, codes: list[str]) -> None:
    assert CODE.findall(text) == codes


def test_every_code_has_a_row_in_the_glossary() -> None:
    rows = set(explained())
    found = list(used(files("src", "docs")))
    assert found
    assert [f"{place}: {code}" for code, place in found if code not in rows] == []


def test_every_family_of_the_tests_is_in_the_glossary() -> None:
    """Of the S codes, tests cite hundreds, each beside a sentence that says the same: only the family is explained."""
    rows = set(explained())
    found = used(files("tests"))
    assert [f"{place}: {code}" for code, place in found if code not in rows and not code.startswith("S")] == []


def test_no_code_is_explained_twice() -> None:
    rows = explained()
    assert sorted(set(rows)) == sorted(rows)


@pytest.mark.parametrize(("family", "number"), FAMILIES.items())
def test_a_family_is_complete(family: str, number: int) -> None:
    assert {f"{family}{one}" for one in range(1, number + 1)} <= set(explained())


def test_the_source_refers_to_no_document_outside_of_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files("src")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if OUTSIDE_DOCUMENT.search(line)
    ]
    assert found == []
