"""The state machine (DESIGN §2): these steps, and no others."""

from __future__ import annotations

import pytest

from todoku.core.errors import IllegalTransition
from todoku.core.status import TRANSITIONS, Status, Step, advance, reachable

P, S, OK, F, A = Status.PENDING, Status.SENDING, Status.SUCCEEDED, Status.FAILED, Status.ABORTED

# DESIGN §2 as a table: what each step makes of each status; "-" is not possible. Columns: P S OK F A.
TABLE: dict[Step, tuple[str, str, str, str, str]] = {
    Step.CLAIM: ("sending", "-", "-", "sending", "-"),
    Step.DONE: ("-", "succeeded", "-", "-", "-"),
    Step.RETRY: ("-", "failed aborted", "-", "-", "-"),
    Step.ABORT: ("-", "aborted", "-", "-", "-"),
    Step.SNOOZE: ("-", "pending aborted", "-", "-", "-"),
    Step.PARK: ("-", "pending", "-", "-", "-"),
    Step.RELEASE: ("-", "pending", "-", "-", "-"),
    Step.LOSE: ("-", "pending aborted", "-", "-", "-"),
    Step.CANCEL: ("aborted", "sending", "-", "aborted", "-"),
    Step.EXPIRE: ("aborted", "-", "-", "aborted", "-"),
    Step.REPLAY: ("-", "-", "-", "-", "pending"),
    Step.SETTLE_BY_HAND: ("succeeded aborted", "-", "-", "succeeded aborted", "succeeded"),
}
PAIRS = [
    (status, step, frozenset() if cell == "-" else frozenset(map(Status, cell.split())))
    for step, cells in TABLE.items()
    for status, cell in zip((P, S, OK, F, A), cells, strict=True)
]


def test_the_table_here_speaks_of_every_pair() -> None:
    assert {(status, step) for status, step, _ in PAIRS} == {(status, step) for status in Status for step in Step}


@pytest.mark.parametrize(("status", "step", "expected"), PAIRS)
def test_a_step_leads_where_the_design_says(status: Status, step: Step, expected: frozenset[Status]) -> None:
    assert reachable(status, step) == expected


@pytest.mark.parametrize(("status", "step", "expected"), PAIRS)
def test_any_other_transition_raises_and_says_what_is_possible(
    status: Status, step: Step, expected: frozenset[Status]
) -> None:
    for to in Status:
        if to in expected:
            assert advance(status, step, to) is to
            continue
        with pytest.raises(IllegalTransition, match=f"cannot go from {status} to {to} by {step}") as caught:
            advance(status, step, to)
        ways = expected or {source for source, made in TRANSITIONS if made is step}
        assert all(way in caught.value.hint for way in ways)


def test_there_are_five_states_in_the_words_of_the_source_documents() -> None:
    """S0-12."""
    assert [str(status) for status in Status] == ["pending", "sending", "succeeded", "failed", "aborted"]


def test_succeeded_and_aborted_are_final() -> None:
    """S0-30, I9: only the acts of a person lead out of them."""
    acts = {Step.REPLAY, Step.SETTLE_BY_HAND}
    assert [status for status in Status if {step for step in Step if reachable(status, step)} <= acts] == [OK, A]


def test_what_succeeded_is_never_touched_again() -> None:
    """I9: nothing leads out of succeeded, not even a person."""
    assert [step for step in Step if reachable(OK, step)] == []


def test_a_dead_letter_leaves_only_by_a_persons_act() -> None:
    """I9: audited replay, or settling by hand."""
    assert [step for step in Step if reachable(A, step)] == [Step.REPLAY, Step.SETTLE_BY_HAND]


def test_a_replay_starts_over_and_nothing_else_leads_out_of_aborted_to_waiting() -> None:
    """S0-65."""
    assert [step for step in Step if P in reachable(A, step)] == [Step.REPLAY]


def test_only_its_owner_ends_a_running_delivery() -> None:
    """H22: cancelling one asks; a person cannot settle it; only a claim makes it run."""
    assert reachable(S, Step.CANCEL) == {S}
    assert reachable(S, Step.SETTLE_BY_HAND) == reachable(S, Step.EXPIRE) == frozenset()
    assert {step for (_, step), to in TRANSITIONS.items() if S in to} == {Step.CLAIM, Step.CANCEL}


def test_every_unfinished_delivery_can_end_and_every_state_can_be_reached() -> None:
    """I1 liveness: from any state that is not final there is a way to both final ones."""
    ways = {status: {to for step in Step for to in reachable(status, step)} for status in Status}
    for start in (P, S, F):
        seen = {start}
        while more := {to for status in seen for to in ways[status]} - seen:
            seen |= more
        assert seen == set(Status)
