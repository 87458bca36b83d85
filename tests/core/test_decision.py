"""THE decision, by table and by property."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.making import claimed, deliveries, jitters, outcomes, policies, quick, retries
from todoku.core.backoff import DEFAULT, Backoff, delay, exponential, table
from todoku.core.decision import (
    CONFLICT,
    FOREVER,
    SNOOZE_LIMIT,
    SUCCEEDED,
    Settlement,
    attempts_allowed,
    decide,
    decide_by_ledger,
    park,
)
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.core.status import Status, Step, reachable

STEP = {Done: Step.DONE, Retry: Step.RETRY, Abort: Step.ABORT, Snooze: Step.SNOOZE}


def settled(outcome: Outcome, *, jitter: float = 0.0, **delivery: object) -> Settlement:
    return decide(claimed(**delivery), outcome, backoff=DEFAULT, jitter=jitter)


def failed(**values: object) -> Settlement:
    return Settlement(status=Status.FAILED, **values)  # type: ignore[arg-type]


def dead(reason: str, error: str, *, exhausted: bool = False) -> Settlement:
    return Settlement(status=Status.ABORTED, reason=reason, error=error, exhausted=exhausted)


FIRST = {"attempt": 1, "max_attempts": 6}
LAST_BUT_ONE = {"attempt": 5, "max_attempts": 6}
LAST = {"attempt": 6, "max_attempts": 6}
ONLY = {"attempt": 1, "max_attempts": 1}
BEYOND = {"attempt": 7, "max_attempts": 6}  # max_attempts was lowered while it waited
LATE = Retry(reason="TIMEOUT", detail="2.5 s")

TABLE: list[tuple[str, dict[str, int], Outcome, Settlement]] = [
    ("W-101: succeeded", FIRST, Done(), Settlement(status=Status.SUCCEEDED)),
    ("a result is kept", LAST, Done("[1]"), Settlement(status=Status.SUCCEEDED, result="[1]")),
    ("W-102: back-off set", FIRST, LATE, failed(delay=5, reason="TIMEOUT", error="2.5 s")),
    ("S0-49: the fifth entry", LAST_BUT_ONE, LATE, failed(delay=80, reason="TIMEOUT", error="2.5 s")),
    ("the reason is text enough", FIRST, Retry(), failed(delay=5, reason="RETRY", error="RETRY")),
    ("the handler knows better", FIRST, Retry(after=7), failed(delay=7, reason="RETRY", error="RETRY")),
    ("at once is a wait too", FIRST, Retry(after=0), failed(delay=0, reason="RETRY", error="RETRY")),
    ("W-104: none left", LAST, LATE, dead("TIMEOUT", "2.5 s", exhausted=True)),
    ("none left, whatever it asks", LAST, Retry(after=7), dead("RETRY", "RETRY", exhausted=True)),
    ("S3-56: never beyond the last", BEYOND, LATE, dead("TIMEOUT", "2.5 s", exhausted=True)),
    ("one attempt is one attempt", ONLY, LATE, dead("TIMEOUT", "2.5 s", exhausted=True)),
    ("S2-11: terminal at once", FIRST, Abort("REFUSED", "no"), dead("REFUSED", "no")),
    ("the reason is text enough", LAST, Abort("REFUSED"), dead("REFUSED", "REFUSED")),
    ("not now", FIRST, Snooze(60), Settlement(status=Status.PENDING, delay=60, snoozed=True)),
    ("not now costs nothing", LAST, Snooze(60), Settlement(status=Status.PENDING, delay=60, snoozed=True)),
    (
        "the last snooze",
        {"snoozes": SNOOZE_LIMIT - 1},
        Snooze(1),
        Settlement(status=Status.PENDING, delay=1, snoozed=True),
    ),
    ("H23: capped", {"snoozes": SNOOZE_LIMIT}, Snooze(1), dead("SNOOZED_TOO_OFTEN", "snoozed 100 times")),
    ("H23: capped", {"snoozes": SNOOZE_LIMIT + 1}, Snooze(1), dead("SNOOZED_TOO_OFTEN", "snoozed 101 times")),
]


@pytest.mark.parametrize(("seconds", "delay"), [(60.0, 60.0), (-1.0, 0.0), (float("inf"), FOREVER)])
def test_a_run_that_parks_is_pending_and_its_attempt_is_given_back(seconds: float, delay: float) -> None:
    """I4, R6: as often as its code waits."""
    assert park(seconds) == Settlement(status=Status.PENDING, delay=delay, parked=True)


@pytest.mark.parametrize(("why", "delivery", "outcome", "expected"), TABLE)
def test_an_outcome_makes_this_of_a_delivery(
    why: str, delivery: dict[str, int], outcome: Outcome, expected: Settlement
) -> None:
    assert settled(outcome, **delivery) == expected


def test_the_policy_waits_longer_by_the_jitter_it_is_given() -> None:
    """§7: up to 10 %; a time that the handler gives is taken as it is."""
    assert settled(Retry(), jitter=0.5).delay == pytest.approx(5.25)
    assert settled(Retry(after=5), jitter=0.5).delay == 5
    assert settled(Snooze(5), jitter=0.5).delay == 5


def test_the_attempt_just_made_chooses_the_wait() -> None:
    """S0-49: BACKOFF[attempts − 1]; S1-33."""
    for policy, expected in ((table(1, 2, 3), [1, 2, 3, 3]), (exponential(base=1, cap=4), [1, 2, 4, 4])):
        made = [decide(claimed(attempt=n), LATE, backoff=policy, jitter=0).delay for n in range(1, 5)]
        assert made == expected


def test_a_replayed_delivery_is_decided_like_a_new_one() -> None:
    """S0-65: its attempts started at 0 again."""
    assert settled(LATE, replay_count=3) == settled(LATE)
    assert settled(LATE, lost=2) == settled(LATE)


@pytest.mark.parametrize("state", [None, "accepted", "failed"])
def test_the_ledger_decides_nothing_before_the_first_success(state: str | None) -> None:
    """I5: only this delivery's own effect entry, and only a success."""
    assert decide_by_ledger(claimed(digest="1:a", effect_state=state, effect_digest="1:a")) is None


def test_an_effect_that_was_recorded_is_not_made_again() -> None:
    """I5, W-105: ledger already succeeded with the same digest ⇒ the row is synchronised."""
    delivery = claimed(digest="1:a", effect_state="succeeded", effect_digest="1:a")
    assert decide_by_ledger(delivery) is SUCCEEDED


def test_an_effect_with_another_body_is_a_conflict() -> None:
    """I5, S0-56: aborted with IDEMPOTENCY_CONFLICT."""
    delivery = claimed(digest="1:a", effect_state="succeeded", effect_digest="1:b")
    assert decide_by_ledger(delivery) is CONFLICT
    assert (CONFLICT.status, CONFLICT.reason) == (Status.ABORTED, "IDEMPOTENCY_CONFLICT")
    assert CONFLICT.error


@quick
@given(deliveries, outcomes, policies, jitters)
def test_every_decision_is_a_step_of_the_state_machine(
    delivery: Claimed, outcome: Outcome, policy: Backoff, jitter: float
) -> None:
    """I1, §2: nothing is ever settled into nowhere, or left in sending."""
    settlement = decide(delivery, outcome, backoff=policy, jitter=jitter)
    assert settlement.status in reachable(Status.SENDING, STEP[type(outcome)])
    assert settlement.status is not Status.SENDING


@quick
@given(deliveries, outcomes, policies, jitters)
def test_a_settlement_says_all_that_its_status_needs(
    delivery: Claimed, outcome: Outcome, policy: Backoff, jitter: float
) -> None:
    settlement = decide(delivery, outcome, backoff=policy, jitter=jitter)
    failing = settlement.status in (Status.FAILED, Status.ABORTED)
    assert (settlement.reason is not None) == (bool(settlement.error)) == failing
    assert settlement.snoozed == (settlement.status is Status.PENDING)
    assert settlement.delay >= 0
    assert settlement.delay == 0 or settlement.status not in (Status.SUCCEEDED, Status.ABORTED)
    assert settlement.result is None or settlement.status is Status.SUCCEEDED


@quick
@given(deliveries, retries, policies, jitters)
def test_a_retry_with_attempts_left_never_aborts_and_never_comes_early(
    delivery: Claimed, outcome: Retry, policy: Backoff, jitter: float
) -> None:
    assume(delivery.attempt < delivery.max_attempts)
    settlement = decide(delivery, outcome, backoff=policy, jitter=jitter)
    assert settlement.status is Status.FAILED
    asked = delay(policy, delivery.attempt, jitter=0) if outcome.after is None else outcome.after
    assert settlement.delay >= asked


@quick
@given(deliveries, retries, policies, jitters)
def test_a_retry_without_attempts_left_always_aborts(
    delivery: Claimed, outcome: Retry, policy: Backoff, jitter: float
) -> None:
    """S0-48: never one attempt more than was allowed."""
    assume(delivery.attempt >= delivery.max_attempts)
    assert decide(delivery, outcome, backoff=policy, jitter=jitter).status is Status.ABORTED


@quick
@given(deliveries, outcomes, policies, st.lists(jitters, min_size=2, max_size=2))
def test_chance_moves_only_the_wait(delivery: Claimed, outcome: Outcome, policy: Backoff, drawn: list[float]) -> None:
    one, other = (decide(delivery, outcome, backoff=policy, jitter=jitter) for jitter in drawn)
    assert [getattr(one, name) for name in Settlement.__struct_fields__ if name != "delay"] == [
        getattr(other, name) for name in Settlement.__struct_fields__ if name != "delay"
    ]


@pytest.mark.parametrize(
    ("recorded", "usual", "attempt", "allowed"),
    [
        (6, 2, 1, 2),
        (6, 9, 1, 9),
        (6, None, 1, 6),
        (3, 9, 1, 3),
        (6, 2, 4, 4),
    ],
    ids=["the worker's", "more than usual", "no setting", "the publisher's", "tried more often already"],
)
def test_MEND_6_the_default_means_that_the_publisher_named_no_number(
    recorded: int, usual: int | None, attempt: int, allowed: int
) -> None:
    assert attempts_allowed(claimed(max_attempts=recorded, attempt=attempt), usual) == allowed
