"""A test of a shell is never left out for good (decision 23)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.turns import left_out


def a_test(name: str, **parameters: str) -> Any:
    words = "-".join(parameters.values())
    return SimpleNamespace(nodeid=f"{name}[{words}]", callspec=SimpleNamespace(params=parameters, id=words))


SHELL = [
    a_test(f"tests/web/test_pages.py::test_{number}", backend=backend, language=language)
    for number in range(40)
    for backend in ("sqlite", "postgres")
    for language in ("en", "ja")
]
ALWAYS = [
    a_test("tests/conformance/test_fence.py::test_one_owner", backend="sqlite"),
    a_test("tests/conformance/test_fence.py::test_one_owner", backend="postgres"),
    a_test("tests/web/test_pages.py::test_what_only_one_has", backend="postgres"),
    SimpleNamespace(nodeid="tests/web/test_pages.py::test_without_a_database"),
]


def names(items: list[Any]) -> set[str]:
    return {item.nodeid for item in items}


def test_what_one_turn_leaves_out_the_next_one_runs() -> None:
    first, second = names(left_out(SHELL, 7)), names(left_out(SHELL, 8))
    assert first | second == names(SHELL)
    assert not first & second


def test_each_turn_runs_half_of_them_on_each_database() -> None:
    on_postgres = sum("postgres" in name for name in names(left_out(SHELL, 7)))
    assert 20 < on_postgres < 60


def test_what_is_about_the_store_or_has_no_twin_runs_always() -> None:
    assert [left_out(ALWAYS, turn) for turn in (7, 8)] == [[], []]
