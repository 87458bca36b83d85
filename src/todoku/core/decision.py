"""THE decision: what an outcome makes of a delivery. One match; everything else in todoku acts on it.

The result says how long to wait, not until when: the database's clock places it (I12).
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from todoku.core.backoff import Backoff, delay
from todoku.core.message import USUAL_ATTEMPTS, Claimed
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze
from todoku.core.status import Status, Step, advance

SNOOZE_LIMIT: Final = 100
"""A snooze gives its attempt back (I4), so only this cap keeps it from going round for ever (H23)."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What settle writes: the next status and, for those that run again, the wait in seconds."""

    status: Status
    delay: float = 0.0
    reason: str | None = None
    error: str | None = None
    result: str | None = None
    snoozed: bool = False
    response: Response | None = None
    """What the receiver answered: kept with an attempt that failed, told to a callback."""


SUCCEEDED: Final = Settlement(status=Status.SUCCEEDED)
CONFLICT: Final = Settlement(
    status=Status.ABORTED,
    reason="IDEMPOTENCY_CONFLICT",
    error="this key already took effect at this destination, with another body",
)


def decide(delivery: Claimed, outcome: Outcome, *, backoff: Backoff, jitter: float) -> Settlement:
    """The settlement of one attempt. `jitter` in [0, 1) is drawn by the caller."""
    match outcome:
        case Done(None, None):
            return SUCCEEDED
        case Done(result, response):
            return Settlement(status=_to(Step.DONE, Status.SUCCEEDED), result=result, response=response)
        case Retry() if delivery.attempt < delivery.max_attempts:
            wait = delay(backoff, delivery.attempt, jitter=jitter) if outcome.after is None else outcome.after
            return _ending(Step.RETRY, Status.FAILED, outcome, delay=wait)
        case Retry():
            return _ending(Step.RETRY, Status.ABORTED, outcome)
        case Abort():
            return _ending(Step.ABORT, Status.ABORTED, outcome)
        case Snooze() if delivery.snoozes < SNOOZE_LIMIT:
            return Settlement(status=_to(Step.SNOOZE, Status.PENDING), delay=outcome.for_, snoozed=True)
        case Snooze():
            limit = Abort("SNOOZED_TOO_OFTEN", f"snoozed {delivery.snoozes} times")
            return _ending(Step.SNOOZE, Status.ABORTED, limit)
        case _:
            assert_never(outcome)


def attempts_allowed(delivery: Claimed, usual: int | None) -> int:
    """How often a delivery may be tried: as its publisher recorded it, unless that is the default, which means that the
    publisher named no number; then `usual`, the worker's (None: the worker has none for this destination).

    Never less than the attempt that is made now: another worker allowed it.
    """
    if usual is None or delivery.max_attempts != USUAL_ATTEMPTS:
        return delivery.max_attempts
    return max(usual, delivery.attempt)


def decided_by_ledger(delivery: Claimed) -> Settlement | None:
    """What the effect entry already decides, before anything is sent (I5). None: go on and send."""
    if delivery.effect_state != "succeeded":
        return None
    return SUCCEEDED if delivery.effect_digest == delivery.digest else CONFLICT


def _ending(step: Step, status: Status, outcome: Retry | Abort, *, delay: float = 0.0) -> Settlement:
    return Settlement(
        status=_to(step, status), delay=delay, reason=outcome.reason, error=outcome.detail or outcome.reason,
        response=outcome.response,
    )  # fmt: skip


def _to(step: Step, status: Status) -> Status:
    return advance(Status.SENDING, step, status)
