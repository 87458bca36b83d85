"""Events of HTTP requests, newest first, derived from existing rows: each kind of event is read by its own index.

A position is (microseconds, id, sub). Each kind is ordered by position, so every page costs the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.identity import uuid7
from todoku.store.attempts import Attempt, attempt
from todoku.store.columns import moment, uuid
from todoku.store.database import Database, Tx
from todoku.store.deliveries import Delivery, Filter, delivery, request_parameters

Kind = Literal["created", "sending", "tried", "died", "delivered"]
Position = tuple[int, int, int]

HIGHEST: Final = (1 << 63) - 1


class Past(msgspec.Struct, frozen=True):
    """An event and its position within its kind. `message_id` None: the filter does not match it.

    The event of a publish has neither a delivery nor an attempt.
    """

    position: Position
    message_id: UUID | None
    created_at: datetime | None = None
    delivery: Delivery | None = None
    attempt: Attempt | None = None


class RequestEventStore:
    """The events of the HTTP requests of one database. Only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, before: Mapping[Kind, Position], which: Filter, *, since: int, limit: int
    ) -> dict[Kind, tuple[Past, ...]]:
        """Of each kind the `limit` rows from its position downwards, not before `since` (microseconds).

        Rows that the filter does not match are among them, as positions only, so that the caller knows how far was
        read. Running deliveries are read before ended ones: one that ends meanwhile is listed twice, not missed.
        """
        values = request_parameters(which)

        def work(tx: Tx) -> dict[Kind, tuple[Past, ...]]:
            return {kind: _READS[kind](tx, before[kind], since, limit, values) for kind in _READS if kind in before}

        return self._database.read(work)


def micros(at: datetime) -> int:
    """A moment in microseconds."""
    return round(at.timestamp() * 1e6)


def created_at(id: UUID) -> int:
    """When a message was created, in microseconds: a public id begins with the milliseconds."""
    return (id.int >> 80) * 1000


Values = dict[str, Any]


def _created(tx: Tx, before: Position, since: int, limit: int, values: Values) -> tuple[Past, ...]:
    at, id, _ = before
    last = UUID(int=id) if id != HIGHEST else uuid7(max(0, at) // 1000, b"\xff" * 10)
    first = uuid7(-(-since // 1000), bytes(10))
    rows = tx.rows("created_requests", **values, before=last, since=first, most=limit)
    found = [(uuid(id), moment(at), matches) for id, at, matches in rows]
    return tuple(Past((created_at(id), id.int, 0), id if matches else None, at) for id, at, matches in found)


def _sending(tx: Tx, before: Position, since: int, limit: int, values: Values) -> tuple[Past, ...]:
    return _past_deliveries(tx.rows("sending_requests", **values, **_range(before, since), most=limit))


def _died(tx: Tx, before: Position, since: int, limit: int, values: Values) -> tuple[Past, ...]:
    position = _range((before[0], min(before[1] + 1, HIGHEST), 0), since)
    return _past_deliveries(tx.rows("dead_requests", **values, **position, most=limit))


def _delivered(tx: Tx, before: Position, since: int, limit: int, values: Values) -> tuple[Past, ...]:
    return _past_deliveries(tx.rows("delivered_requests", **values, **_range(before, since), most=limit))


def _tried(tx: Tx, before: Position, since: int, limit: int, values: Values) -> tuple[Past, ...]:
    rows = tx.rows("tried_requests", **values, **_range(before, since), before_epoch=before[2], most=limit)
    return tuple(past_attempt(attempt(row[:-1]), matches=bool(row[-1])) for row in rows)


_READS: Final[dict[Kind, Callable[[Tx, Position, int, int, Values], tuple[Past, ...]]]] = {
    "sending": _sending,
    "tried": _tried,
    "died": _died,
    "delivered": _delivered,
    "created": _created,
}


def _range(before: Position, since: int) -> Values:
    return {"before": moment(max(0, before[0]) / 1e6), "before_id": before[1], "since": moment(since / 1e6)}


def _past_deliveries(rows: list[Any]) -> tuple[Past, ...]:
    return tuple(past_delivery(delivery(row[:-1]), matches=bool(row[-1])) for row in rows)


def past_delivery(row: Delivery, *, matches: bool = True) -> Past:
    """The event of a delivery that is running, dead or delivered, with its position."""
    at = row.claimed_at if row.status == "sending" and row.claimed_at is not None else row.updated_at
    return Past((micros(at), row.id, 0), row.message_id if matches else None, delivery=row)


def past_attempt(row: Attempt, *, matches: bool = True) -> Past:
    """The event of a failed attempt, with its position."""
    return Past((micros(row.ended_at), row.delivery_id, row.epoch), row.message_id if matches else None, attempt=row)
