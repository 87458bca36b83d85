"""The public names: what `todoku` exports is what docs/public.md lists, no more and no less."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import todoku

PAGE = Path(__file__).resolve().parents[2] / "docs" / "public.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \|", re.MULTILINE)
EXPORTED = list(getattr(todoku, "__all__", ()))


def test_the_documented_names_are_the_exported_ones() -> None:
    assert ROW.findall(PAGE.read_text(encoding="utf-8")) == EXPORTED


def test_the_names_are_sorted_and_there_once() -> None:
    assert sorted(set(EXPORTED)) == EXPORTED


@pytest.mark.parametrize("name", EXPORTED)
def test_the_name_exists_and_explains_itself(name: str) -> None:
    value = getattr(todoku, name)
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return  # a constant or a type alias has no docstring of its own
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    # A dataclass without a docstring gets its signature as one.
    assert doc, f"todoku.{name} has no docstring"
    assert not doc.startswith(f"{name}("), f"todoku.{name} has only a generated docstring"


def test_nothing_else_is_public() -> None:
    """Beside `__all__` there are only submodules: a name that is not listed is not promised."""
    extra = {
        name
        for name, value in vars(todoku).items()
        if not name.startswith("_") and name not in EXPORTED and not inspect.ismodule(value)
    }
    assert extra == set()
