"""The five states of a delivery and the only steps between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from todoku.core.errors import IllegalTransition


class Status(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"


class Step(StrEnum):
    """An event in the life of a delivery."""

    CLAIM = "claim"
    DONE = "done"
    RETRY = "retry"
    ABORT = "abort"
    SNOOZE = "snooze"
    PARK = "park"
    RELEASE = "release"
    LOSE = "lose"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REPLAY = "replay"
    SETTLE_BY_HAND = "settle by hand"


TRANSITIONS: Final[dict[tuple[Status, Step], frozenset[Status]]] = {
    (Status.PENDING, Step.CLAIM): frozenset({Status.SENDING}),
    (Status.FAILED, Step.CLAIM): frozenset({Status.SENDING}),
    (Status.SENDING, Step.DONE): frozenset({Status.SUCCEEDED}),
    (Status.SENDING, Step.RETRY): frozenset({Status.FAILED, Status.ABORTED}),
    (Status.SENDING, Step.ABORT): frozenset({Status.ABORTED}),
    (Status.SENDING, Step.SNOOZE): frozenset({Status.PENDING, Status.ABORTED}),
    (Status.SENDING, Step.PARK): frozenset({Status.PENDING}),
    (Status.SENDING, Step.RELEASE): frozenset({Status.PENDING}),
    (Status.SENDING, Step.LOSE): frozenset({Status.PENDING, Status.ABORTED}),
    # Cancelling a running delivery only sets a flag: its worker settles it, and a Done before that wins.
    (Status.SENDING, Step.CANCEL): frozenset({Status.SENDING}),
    (Status.PENDING, Step.CANCEL): frozenset({Status.ABORTED}),
    (Status.FAILED, Step.CANCEL): frozenset({Status.ABORTED}),
    (Status.PENDING, Step.EXPIRE): frozenset({Status.ABORTED}),
    (Status.FAILED, Step.EXPIRE): frozenset({Status.ABORTED}),
    (Status.ABORTED, Step.REPLAY): frozenset({Status.PENDING}),
    (Status.PENDING, Step.SETTLE_BY_HAND): frozenset({Status.SUCCEEDED, Status.ABORTED}),
    (Status.FAILED, Step.SETTLE_BY_HAND): frozenset({Status.SUCCEEDED, Status.ABORTED}),
    (Status.ABORTED, Step.SETTLE_BY_HAND): frozenset({Status.SUCCEEDED}),
}


def reachable(status: Status, step: Step) -> frozenset[Status]:
    """Returns the states that `step` may lead to from `status`; empty if it is not allowed."""
    return TRANSITIONS.get((status, step), frozenset())


def advance(status: Status, step: Step, to: Status) -> Status:
    """Returns `to` if `step` may lead to it from `status`; raises IllegalTransition."""
    allowed = reachable(status, step)
    if to in allowed:
        return to
    if allowed:
        hint = f"{step} leads from {status} to {' or '.join(sorted(allowed))}"
    else:
        sources = sorted(source for source, known in TRANSITIONS if known is step)
        hint = f"{step} is possible from {' or '.join(sources)} only"
    raise IllegalTransition(f"a delivery cannot go from {status} to {to} by {step}", hint=hint)
