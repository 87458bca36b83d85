"""Names: a class name has one meaning in the package, and module names say what is in the module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.architecture.test_layers import FILES, ROOT, parsed, place

MAY_REPEAT = {
    "integrations/django": "Django finds `Meta` and `Migration` by name, and models are named as its admin shows them",
    "api/admin": "the names of its schemas are published in the OpenAPI description",
    "testing": "public names for the test suites of others",
}
"""Packages whose classes may have a name that another module uses, and why."""

RIDDLES = {
    "abreast", "acting", "apart", "asking", "burial", "insisting", "kept", "learned", "line", "looking", "mould",
    "over", "rekeep", "remembered", "sealing", "shown", "straight", "telling", "timetable", "together", "undertaker",
    "wanted", "wanting", "wire",
}  # fmt: skip
"""Names that modules had and that only their authors understood. Modules are named by a noun for what is in them."""


def may_repeat(path: Path) -> bool:
    return any(ROOT / directory in path.parents for directory in MAY_REPEAT)


def classes() -> dict[str, list[str]]:
    """Where each class name is defined, without the packages whose names may repeat."""
    found = defaultdict(list)
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not may_repeat(path):
                found[node.name].append(place(path, node.lineno))
    return found


def test_a_class_name_has_one_meaning() -> None:
    found = classes()
    assert "App" in found
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_what_may_repeat_exists() -> None:
    assert [directory for directory in MAY_REPEAT if not (ROOT / directory).is_dir()] == []


def riddles(path: Path) -> set[str]:
    """The parts of a module's path that are riddles: whole names, because `shown_requests` says what it is."""
    return {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts} & RIDDLES


def test_module_names_are_not_riddles() -> None:
    named = {path.relative_to(ROOT).as_posix(): riddles(path) for path in FILES}
    assert {name: words for name, words in named.items() if words} == {}
