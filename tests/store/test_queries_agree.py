"""Python names queries, SQL files hold them: both backends have what is asked for, and nothing is left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import todoku
from todoku.store.sql import load, parameters, query_text

STORE = Path(todoku.__file__).parent / "store"
PACKAGES = {"sqlite": "todoku.store.sqlite", "postgres": "todoku.store.postgres"}
QUERIES = {backend: load(package) for backend, package in PACKAGES.items()}
CALLS = ("rows", "one", "many", "_prune_in_rounds")
FRAGMENT = re.compile(r"\{(\w+)\}")

Call = tuple[Path, str, frozenset[str] | None]


def calls() -> Iterator[Call]:
    """Every query that the store names: (where, name, what it is given or None if that is not spelt out)."""
    for path in sorted(STORE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or called(node) not in CALLS:
                continue
            spelt = called(node) == "rows" and all(keyword.arg for keyword in node.keywords)
            spelt = spelt and not isinstance(node.args[0], ast.Name)
            given = frozenset(str(keyword.arg) for keyword in node.keywords) if spelt else None
            for name in named(node.args[1] if called(node) == "_prune_in_rounds" else node.args[0], path):
                yield path.relative_to(STORE), name, given


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def named(argument: ast.expr, path: Path) -> Iterator[str]:
    """A query's name: a text, one of two, or an f-text over texts: of a tuple that is called `names`, of a `Literal`
    that is called as the value in it, or of the loop around it.
    """
    if isinstance(argument, ast.Constant):
        yield str(argument.value)
    elif isinstance(argument, ast.IfExp):
        yield from (*named(argument.body, path), *named(argument.orelse, path))
    elif isinstance(argument, ast.JoinedStr):
        prefix = str(argument.values[0].value)  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            loop = node.iter if isinstance(node, ast.For) and ast.unparse(argument) in ast.unparse(node) else None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "names":
                loop = node.value
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).lower() == ast.unparse(value_of(argument)):
                loop = node.value.slice if isinstance(node.value, ast.Subscript) else None
            if isinstance(loop, ast.Tuple):
                yield from (prefix + ast.literal_eval(item) for item in loop.elts)
    else:
        assert isinstance(argument, ast.Name), ast.unparse(argument)  # handed on: its caller names it
        for text in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(text, ast.Constant)
                and str(text.value) in QUERIES["sqlite"]
                and re.search("_|projection", str(text.value))
            ):
                yield str(text.value)


def value_of(text: ast.JoinedStr) -> ast.expr:
    """The value that an f-text ends with."""
    last = text.values[-1]
    return last.value if isinstance(last, ast.FormattedValue) else last


ALL = list(calls())
BUILDERS = ("publish.py", "publish_parts.py", "publish_deduplicated.py")
SHARED = [call for call in ALL if call[0].parent == Path() and call[0].name not in BUILDERS]
PUBLISH = {name for path, name, _ in ALL if path.name in BUILDERS}


LISTS = {"claim_list", "claim_lane_list", "settle_listed"}
"""Claims by list are asked of PostgreSQL alone."""


def of(backend: str) -> list[Call]:
    """What is asked of one backend: by everybody, and by its own modules."""
    shared = SHARED if backend == "postgres" else [call for call in SHARED if call[1] not in LISTS]
    return shared + [call for call in ALL if call[0].parent == Path(backend)]


def test_the_names_are_found() -> None:
    """The rest of this file would be green over nothing."""
    assert len({name for _, name, _ in SHARED}) > 40
    assert {"claim", "server"} <= {name for _, name, _ in of("postgres")}
    assert {"publish", "publish_message", "publish_reopen_lanes"} <= PUBLISH


@pytest.mark.parametrize("backend", PACKAGES)
def test_a_backend_has_every_query_that_is_asked_of_it(backend: str) -> None:
    assert {name for _, name, _ in of(backend)} - QUERIES[backend].keys() == set()


@pytest.mark.parametrize("backend", PACKAGES)
def test_a_query_is_given_every_parameter_it_has(backend: str) -> None:
    """The clock is the backend's own to give."""
    for path, name, given in of(backend):
        if given is not None:
            assert set(parameters(QUERIES[backend][name])) - {"now"} <= given, (path, name)


def test_what_publish_asks_for_is_in_one_backend_or_both() -> None:
    """The builder asks each dialect for its own statements; conformance runs them."""
    assert PUBLISH - (QUERIES["sqlite"].keys() | QUERIES["postgres"].keys()) == set()
    for name in ("publish_reserve", "publish_reserved", "publish_unreserve", "publish_reopen"):
        assert all(name in queries for queries in QUERIES.values()), name


@pytest.mark.parametrize("backend", PACKAGES)
def test_every_query_is_used_by_somebody(backend: str) -> None:
    text = query_text(f"todoku.store.{backend}")
    used = {name for _, name, _ in of(backend)} | PUBLISH | set(FRAGMENT.findall(text))
    assert sorted(QUERIES[backend].keys() - used) == []


def test_what_both_are_asked_for_returns_as_many_columns_on_both() -> None:
    """Rows are taken apart by position."""
    counted = {
        name: {backend: columns(QUERIES[backend][name]) for backend in PACKAGES}
        for _, name, _ in of("sqlite")
        if name in QUERIES["postgres"] and all(columns(QUERIES[backend][name]) for backend in PACKAGES)
    }
    assert len(counted) > 10
    assert {name: both for name, both in counted.items() if len(set(both.values())) > 1} == {}


def columns(sql: str) -> int:
    """The columns of a plain select; 0 for anything else."""
    match = re.match(r"select (.*?)\n?\s+from\s", sql, re.DOTALL)
    if match is None:
        return 0
    depth, number = 0, 1
    for character in re.sub(r"'[^']*'", "", match[1]):
        depth += (character == "(") - (character == ")")
        number += character == "," and depth == 0
    return number if depth == 0 else 0
