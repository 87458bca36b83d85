"""docs/reference: written from the code, whole, and as the code is now. `make reference` writes it."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import todoku
from tests.architecture.test_docs import BLOCKS
from tests.support.public import INTERNAL, MODULES, Public
from tests.support.reference import GUIDES, PLACE, Reference

PUBLIC = Public.of_todoku()
PAGES = Reference(PUBLIC).pages()
CLASSES = [
    (path, name)
    for path, names in MODULES.items()
    for name in names or import_module(path).__all__
    if inspect.isclass(getattr(import_module(path), name))
]


def test_the_pages_are_what_the_code_says() -> None:
    """If this fails, run `make reference` and commit what it wrote."""
    there = {path.name: path.read_text("utf-8") for path in PLACE.iterdir()}
    differ = {name for name in there.keys() | PAGES.keys() if there.get(name) != PAGES.get(name)}
    assert sorted(differ) == [], "run `make reference`"


@pytest.mark.parametrize("path", MODULES)
def test_every_name_that_people_import_has_its_page(path: str) -> None:
    shown = {value.call for _, value in PUBLIC.functions.values()} | PUBLIC.classes.keys()
    module = import_module(path)
    names = MODULES[path] or module.__all__
    assert [name for name in names if getattr(module, name) not in shown] == []


@pytest.mark.parametrize(("path", "name"), CLASSES)
def test_every_method_has_its_page(path: str, name: str) -> None:
    """Or is inherited from a class that has, or is the async form of one that has, or is named as todoku's own."""
    kind = getattr(import_module(path), name)
    public = PUBLIC.classes[kind]
    inherited = {member for base in kind.__mro__[1:] if base in PUBLIC.classes for member in vars(base)}
    methods = {
        member
        for member in set(dir(kind)) - (inherited - set(vars(kind)))
        if not member.startswith("_")
        and inspect.isfunction(value := getattr(kind, member))
        and value.__module__.startswith("todoku.")
    }
    paged = {member for member in methods if f"{public.page}.{member}.md" in PAGES}
    twins = {f"a{member}" for member in paged if f"`a{member}`" in PAGES[f"{public.page}.md"]}
    assert methods - paged - twins - public.hidden == set()


def test_everything_an_app_has_is_on_its_page_or_named_as_todokus_own(tmp_path: Path) -> None:
    box = todoku.App(f"sqlite:///{tmp_path}/todoku.db")
    attributes = {name for name in vars(box) if not name.startswith("_")} - set(INTERNAL["App"].split())
    assert {name for name in attributes if f"| `{name}` |" not in PAGES["App.md"]} == set()


@pytest.mark.parametrize("part", ["deliveries", "queues", "schedules", "ledger", "flows"])
def test_the_parts_of_an_app_have_their_pages(part: str, tmp_path: Path) -> None:
    box = todoku.App(f"sqlite:///{tmp_path}/todoku.db")
    assert type(getattr(box, part)) in PUBLIC.classes


def test_what_is_named_as_todokus_own_is_there() -> None:
    by_name = {public.name: kind for kind, public in PUBLIC.classes.items()}
    gone = [
        f"{name}.{member}"
        for name, members in INTERNAL.items()
        for member in members.split()
        if not hasattr(by_name[name], member) and f"self.{member}" not in inspect.getsource(by_name[name])
    ]
    assert gone == []


def test_pages_differ_in_more_than_capital_letters() -> None:
    """A clone on macOS or Windows has one file of both."""
    assert len({name.casefold() for name in PAGES}) == len(PAGES)


def test_pages_lead_to_guides_that_exist() -> None:
    assert [name for name in GUIDES if not (PLACE.parent / f"{name}.md").exists()] == []


def test_what_the_snippets_of_the_docs_import_has_a_page() -> None:
    shown = {kind.__name__ for kind in PUBLIC.classes} | {value.name for _, value in PUBLIC.functions.values()}
    missing = []
    for block in BLOCKS:
        if block.info.endswith("a signature"):
            continue
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                missing += [f"{block.id}: {name.name}" for name in node.names if name.name not in shown]
    assert missing == []
