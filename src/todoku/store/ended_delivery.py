"""Ended deliveries, as input for the hooks, callbacks and batches that follow an end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from todoku.core.decision import Settlement
from todoku.core.http_request import INHERITED
from todoku.core.message import Claimed
from todoku.core.outcome import Response
from todoku.core.status import Status
from todoku.store.database import Tx

CANCELLED = ("CANCELLED", "cancelled while it ran")
"""Reason and error of a delivery that was cancelled while its attempt ran."""


class EndedDelivery(msgspec.Struct, frozen=True):
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
    ended_before: bool = False
    """The delivery had already ended once, as a dead letter."""
    response: Response | None = None
    """The receiver's response to the last attempt; None if the caller that ended the delivery does not have it."""
    exhausted: bool = False
    """It became a dead letter because no attempt was left."""


def trace_of(headers: str | None) -> dict[str, str]:
    """The trace headers and the correlation id of a message, for the messages that follow it."""
    found: dict[str, str] = {} if headers is None else msgspec.json.decode(headers)
    return {name: value for name, value in found.items() if name.lower() in INHERITED}


def select_ended(pairs: Iterable[tuple[Claimed, Settlement]], cancelled: Collection[int]) -> list[EndedDelivery]:
    """Returns the settled deliveries that have ended. `cancelled`: ids that would be retried, but were cancelled.

    A delivery whose message was removed settles, too, but is left out: nothing follows its end.
    """
    return [
        _ended(claim, settlement, cancelled=claim.id in cancelled)
        for claim, settlement in pairs
        if (settlement.status in (Status.SUCCEEDED, Status.ABORTED) or claim.id in cancelled) and claim.message_id
    ]


def _ended(claim: Claimed, settlement: Settlement, *, cancelled: bool) -> EndedDelivery:
    reason, error = CANCELLED if cancelled else (settlement.reason, settlement.error)
    return EndedDelivery(
        claim.id, claim.message_id, claim.topic, claim.key, claim.destination, claim.queue, claim.headers,
        Status.ABORTED if cancelled else settlement.status, reason, error, claim.attempt - settlement.snoozed,
        claim.replay_count, claim.replay_count > 0, settlement.response, settlement.exhausted and not cancelled,
    )  # fmt: skip


def load_ended(tx: Tx, ids: Sequence[int]) -> list[EndedDelivery]:
    """Reads deliveries that are dead letters, or were until this transaction."""
    rows = (EndedDelivery(*row) for row in tx.rows("over", ids=ids))
    return [msgspec.structs.replace(row, status=Status(row.status), ended_before=row.replay_count > 0) for row in rows]


def load_as_succeeded(tx: Tx, ids: Sequence[int]) -> list[EndedDelivery]:
    """Rows of this transaction that a person is about to call succeeded."""
    return [
        msgspec.structs.replace(
            each,
            status=Status.SUCCEEDED,
            reason=None,
            error=None,
            ended_before=each.ended_before or each.status is Status.ABORTED,
        )
        for each in load_ended(tx, ids)
    ]
