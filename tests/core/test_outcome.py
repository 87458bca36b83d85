"""Outcomes are values: compared by content, returned or raised, and checked when they are made."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta

import pytest
from hypothesis import given

from tests.core.making import any_text, outcomes, quick
from todoku.core.errors import InvalidMessage
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze, error_text, reason_code, seconds

YEARS = 365 * 86_400.0


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (Done(), Done(None)),
        (Done("1"), Done(result="1")),
        (Retry(), Retry(None, "RETRY", "")),
        (Retry(5), Retry(after=timedelta(seconds=5))),
        (Retry(reason="TIMEOUT", detail="x"), Retry(None, "TIMEOUT", "x")),
        (Abort("REFUSED"), Abort(reason="REFUSED", detail="")),
        (Snooze(60), Snooze(timedelta(minutes=1))),
    ],
)
def test_outcomes_with_the_same_content_are_equal(one: Outcome, same: Outcome) -> None:
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1


DIFFERENT: list[Outcome] = [
    Done(), Done("1"), Retry(), Retry(0), Retry(5), Retry(reason="TIMEOUT"), Retry(detail="x"), Abort("RETRY"),
    Abort("RETRY", "x"), Snooze(0), Snooze(5),
]  # fmt: skip


def test_outcomes_that_differ_in_anything_are_not_equal() -> None:
    for place, one in enumerate(DIFFERENT):
        assert [place for place, other in enumerate(DIFFERENT) if other == one] == [place]
    assert Retry() != "RETRY"


@pytest.mark.parametrize("outcome", [Retry(3, "TIMEOUT", "late"), Abort("REFUSED", "no"), Snooze(9)])
def test_a_handler_may_raise_what_it_may_return(outcome: Retry | Abort | Snooze) -> None:
    """§1 outcome."""
    with pytest.raises(type(outcome)) as caught:
        raise outcome
    assert caught.value is outcome
    assert caught.value == copy.copy(outcome)  # being raised changed nothing


@quick
@given(outcomes)
def test_an_outcome_survives_a_copy_and_the_way_between_processes(outcome: Outcome) -> None:
    """§4 Execute: handlers also run in processes, and their outcome is sent back."""
    assert copy.deepcopy(outcome) == pickle.loads(pickle.dumps(outcome)) == outcome


def test_done_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Done("1").result = "2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(0, 0.0), (5, 5.0), (0.25, 0.25), (timedelta(), 0.0), (timedelta(minutes=2, microseconds=1), 120.000001),
     (10 * YEARS, 10 * YEARS)],
)  # fmt: skip
def test_a_duration_is_seconds_or_a_timedelta(duration: float | timedelta, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize(
    "duration",
    [-1, -0.001, timedelta(microseconds=-1), math.nan, math.inf, -math.inf, 10 * YEARS + 1, timedelta.max, 10**400,
     None, "soon", [5]],
)  # fmt: skip
def test_anything_else_is_refused_with_a_hint(duration: object) -> None:
    """ "Bad input is a clear error": negative delay, NaN, and what no timestamp can hold."""
    with pytest.raises(InvalidMessage, match="delay cannot be") as caught:
        seconds(duration, what="delay")  # type: ignore[arg-type]
    assert "seconds ≥ 0" in caught.value.hint
    for outcome in (Retry, Snooze):
        if duration is not None:
            with pytest.raises(InvalidMessage, match=outcome.__name__):
                outcome(duration)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["A", "HTTP_5XX", "BROKER_TIMEOUT", "A" * 64, "X_1"])
def test_a_reason_is_a_code(reason: str) -> None:
    assert reason_code(reason) == Abort(reason).reason == Retry(reason=reason).reason == reason


@pytest.mark.parametrize(
    "reason", ["", "timeout", "Timeout", "5XX", "_A", "A B", "A-B", "A" * 65, "A\n", "Ä", "order 17 failed"]
)
def test_a_sentence_is_no_reason(reason: str) -> None:
    """§1 reason: low cardinality, because it becomes a metric label (S2-12)."""
    for make in (reason_code, Abort, lambda code: Retry(reason=code)):
        with pytest.raises(InvalidMessage, match="is not a reason") as caught:
            make(reason)
        assert "UPPER_SNAKE_CASE" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("it was late", "it was late"),
        ("a\0b", "a�b"),
        ("half \ud800 pair", "half ? pair"),
        ("x" * 512, "x" * 512),
        ("x" * 513, "x" * 511 + "…"),
        ("届く" * 300, ("届く" * 300)[:511] + "…"),
    ],
)
def test_the_text_of_an_error_is_stored_like_this(text: str, stored: str) -> None:
    """S0-53: cut at 512; and in a form that both databases take."""
    assert error_text(text) == stored
    assert Abort("X", text).detail == Retry(detail=text).detail == stored


@quick
@given(any_text)
def test_no_text_is_too_strange_to_be_stored(text: str) -> None:
    stored = error_text(text)
    assert len(stored) <= 512
    assert "\0" not in stored
    assert stored.encode().decode() == stored
    assert error_text(stored) == stored
