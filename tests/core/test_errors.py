"""Errors: one tree, each with a hint that says what to do about it."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from todoku.core import errors
from todoku.core.errors import TodokuError

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
OURS = [kind for kind in ALL if issubclass(kind, TodokuError)]


@pytest.mark.parametrize("kind", OURS)
def test_an_error_shows_its_hint(kind: type[TodokuError]) -> None:
    error = kind("the disk is full", hint="buy another")
    assert str(error) == "the disk is full (buy another)"
    assert error.hint == "buy another"


@pytest.mark.parametrize("kind", OURS)
def test_an_error_without_a_hint_is_its_message(kind: type[TodokuError]) -> None:
    error = kind("the disk is full")
    assert (str(error), error.hint) == ("the disk is full", "")


@pytest.mark.parametrize("kind", OURS)
def test_an_error_survives_the_way_between_processes(kind: type[TodokuError]) -> None:
    error = kind("the disk is full", hint="buy another")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.hint) == (kind, str(error), error.hint)


@pytest.mark.parametrize("kind", ALL)
def test_an_error_explains_itself(kind: type[Exception]) -> None:
    assert kind.__doc__
    assert kind.__doc__.endswith(".")


def parents() -> dict[str, str]:
    """The tree drawn at the top of the module: child → parent."""
    found: dict[str, str] = {}
    above = ["TodokuError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"(?P<indent>[│ ]*)[├└]── (?P<name>\w+)", line):
            depth = len(match["indent"]) // 4 + 1
            above[depth:] = [match["name"]]
            found[match["name"]] = above[depth - 1]
    return found


def test_the_tree_is_the_one_that_is_drawn() -> None:
    assert parents() == {
        kind.__name__: next(base.__name__ for base in kind.__bases__ if issubclass(base, TodokuError))
        for kind in OURS
        if kind is not TodokuError
    }


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidMessage, ValueError),
        (errors.InvalidSetting, ValueError),
        (errors.UnknownDatabase, ValueError),
        (errors.UnsupportedConnection, TypeError),
    ],
)
def test_bad_input_is_also_what_python_calls_it(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_unknown_and_refused_are_told_apart() -> None:
    """port: DatabaseUnavailable ⇒ the outcome is unknown; DatabaseBusy ⇒ nothing was changed."""
    assert not issubclass(errors.DatabaseBusy, errors.DatabaseUnavailable)
    assert not issubclass(errors.DatabaseUnavailable, errors.DatabaseBusy)


def test_a_warning_is_no_error() -> None:
    assert issubclass(errors.DurabilityWarning, UserWarning)
    assert not issubclass(errors.DurabilityWarning, TodokuError)
