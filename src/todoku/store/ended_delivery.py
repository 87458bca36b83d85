"""Deliveries that are over, as those who end them know them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from todoku.core.decision import Settlement
from todoku.core.message import Claimed
from todoku.core.outcome import Response
from todoku.core.status import Status
from todoku.store.database import Tx

CANCELLED = ("CANCELLED", "cancelled while it ran")
"""Reason and error of a delivery that was cancelled before its owner could say how it ended."""


class Over(msgspec.Struct, frozen=True):
    """A delivery that ended in this transaction."""

    delivery_id: int
    message_id: str
    topic: str
    key: str | None
    destination: str
    queue: str
    headers: str | None
    status: Status
    reason: str | None
    error: str | None
    attempts: int
    replay_count: int
    again: bool = False
    """It had ended before, as a dead letter."""
    response: Response | None = None
    """What the receiver answered to its last attempt, where who ends it knows."""


def settled(pairs: Iterable[tuple[Claimed, Settlement]], cancelled: Collection[int]) -> list[Over]:
    """Of what was settled, what is over by it. `cancelled`: ids that would run again, had nobody cancelled them.

    A delivery whose message is gone, by whatever hand, is told of by nobody: it must still settle.
    """
    return [
        _of(claim, settlement, cancelled=claim.id in cancelled)
        for claim, settlement in pairs
        if (settlement.status in (Status.SUCCEEDED, Status.ABORTED) or claim.id in cancelled) and claim.message_id
    ]


def _of(claim: Claimed, settlement: Settlement, *, cancelled: bool) -> Over:
    reason, error = CANCELLED if cancelled else (settlement.reason, settlement.error)
    return Over(
        claim.id, claim.message_id, claim.topic, claim.key, claim.destination, claim.queue, claim.headers,
        Status.ABORTED if cancelled else settlement.status, reason, error, claim.attempt - settlement.snoozed,
        claim.replay_count, claim.replay_count > 0, settlement.response,
    )  # fmt: skip


def loaded(tx: Tx, ids: Sequence[int]) -> list[Over]:
    """Rows of this transaction that are dead letters, or were until now."""
    rows = (Over(*row) for row in tx.rows("over", ids=ids))
    return [msgspec.structs.replace(row, status=Status(row.status), again=row.replay_count > 0) for row in rows]


def succeeding(tx: Tx, ids: Sequence[int]) -> list[Over]:
    """Rows of this transaction that a person is about to call succeeded."""
    return [
        msgspec.structs.replace(
            each, status=Status.SUCCEEDED, reason=None, error=None, again=each.again or each.status is Status.ABORTED
        )
        for each in loaded(tx, ids)
    ]
