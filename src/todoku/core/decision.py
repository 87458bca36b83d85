"""Decides what becomes of a delivery after an attempt. This is the only place that does.

The result has a delay and not a time, because the time is computed with the database's clock (I12).
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from todoku.core.backoff import Backoff, delay
from todoku.core.message import USUAL_ATTEMPTS, Claimed
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze, Traceback
from todoku.core.status import Status, Step, advance

SNOOZE_LIMIT: Final = 100
"""A snooze does not count as an attempt (I4), so only this limit keeps a delivery from snoozing for ever (H23)."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The values that settle writes: the next status and, if the delivery runs again, the delay in seconds."""

    status: Status
    delay: float = 0.0
    reason: str | None = None
    error: str | None = None
    result: str | None = None
    snoozed: bool = False
    parked: bool = False
    """The run of a workflow waits: its attempt is given back, as often as it parks."""
    exhausted: bool = False
    """It became a dead letter because no attempt was left, and not because its handler gave it up."""
    is_run: bool = False
    """It settles the run of a workflow: its success counts only if its worker still owns it (R12)."""
    response: Response | None = None
    """The receiver's response. It is stored with a failed attempt, and sent in a callback."""
    traceback: Traceback | None = None
    """The traceback of a failed attempt."""


SUCCEEDED: Final = Settlement(status=Status.SUCCEEDED)

FOREVER: Final = 100 * 365 * 86_400.0
"""Seconds for which a run parks that only a signal or its children can wake."""


def park(seconds: float) -> Settlement:
    """Returns the settlement of a run that waits: pending, without a slot and a lease, until then or until it is woken.

    Unlike a snooze it is not bounded: a run may wait as often as its code says (I4).
    """
    return Settlement(status=_advance_to(Step.PARK, Status.PENDING), delay=min(max(seconds, 0.0), FOREVER), parked=True)


CONFLICT: Final = Settlement(
    status=Status.ABORTED,
    reason="IDEMPOTENCY_CONFLICT",
    error="the destination already processed this idempotency key with another body",
)


def decide(delivery: Claimed, outcome: Outcome, *, backoff: Backoff, jitter: float) -> Settlement:
    """Returns the settlement of one attempt. The caller draws `jitter` in [0, 1)."""
    match outcome:
        case Done(None, None):
            return SUCCEEDED
        case Done(result, response):
            return Settlement(status=_advance_to(Step.DONE, Status.SUCCEEDED), result=result, response=response)
        case Retry() if delivery.attempt < delivery.max_attempts:
            wait = delay(backoff, delivery.attempt, jitter=jitter) if outcome.after is None else outcome.after
            return _settlement(Step.RETRY, Status.FAILED, outcome, delay=wait)
        case Retry():
            return msgspec.structs.replace(_settlement(Step.RETRY, Status.ABORTED, outcome), exhausted=True)
        case Abort():
            return _settlement(Step.ABORT, Status.ABORTED, outcome)
        case Snooze() if delivery.snoozes < SNOOZE_LIMIT:
            return Settlement(status=_advance_to(Step.SNOOZE, Status.PENDING), delay=outcome.for_, snoozed=True)
        case Snooze():
            limit = Abort("SNOOZED_TOO_OFTEN", f"snoozed {delivery.snoozes} times")
            return _settlement(Step.SNOOZE, Status.ABORTED, limit)
        case _:
            assert_never(outcome)


def attempts_allowed(delivery: Claimed, usual: int | None) -> int:
    """Returns how many attempts a delivery has in all: the number stored with it, or `usual`, that of the worker.

    The stored number is the default if the publisher gave none; then `usual` applies (None: the worker has no number
    for this destination). The result is never less than the current attempt, which another worker may have allowed.
    """
    if usual is None or delivery.max_attempts != USUAL_ATTEMPTS:
        return delivery.max_attempts
    return max(usual, delivery.attempt)


def decide_by_ledger(delivery: Claimed) -> Settlement | None:
    """Returns the settlement if the ledger has the effect already, so that nothing is sent (I5). None: send."""
    if delivery.effect_state != "succeeded":
        return None
    return SUCCEEDED if delivery.effect_digest == delivery.digest else CONFLICT


def _settlement(step: Step, status: Status, outcome: Retry | Abort, *, delay: float = 0.0) -> Settlement:
    return Settlement(
        status=_advance_to(step, status), delay=delay, reason=outcome.reason, error=outcome.detail or outcome.reason,
        response=outcome.response,
    )  # fmt: skip


def _advance_to(step: Step, status: Status) -> Status:
    return advance(Status.SENDING, step, status)
