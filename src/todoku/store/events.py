"""What happened to requests, newest first: from the rows that are there anyway, each kind by an index of its own.

A position is (microseconds, id, sub): every kind is ordered by its own, so a page costs the same however deep it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.identity import uuid7
from todoku.store.columns import moment, uuid
from todoku.store.database import Database, Tx
from todoku.store.requests import RequestRow, TriedRow, request_row, tried_row

Kind = Literal["created", "sending", "tried", "died", "delivered"]
Position = tuple[int, int, int]

HIGHEST: Final = (1 << 63) - 1


class CreatedRow(msgspec.Struct, frozen=True):
    """A request that was published."""

    message_id: UUID
    headers: str | None
    created_at: datetime


class Past(msgspec.Struct, frozen=True):
    """Something that happened, and where it stands among its kind. `what` None: it is of no request."""

    position: Position
    what: CreatedRow | TriedRow | RequestRow | None


class RequestEvents:
    """The past of the requests of one database. Only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, before: Mapping[Kind, Position], *, since: int, limit: int) -> dict[Kind, tuple[Past, ...]]:
        """Of each kind that is named the `limit` rows from its position downwards, not before `since` (microseconds).

        What runs is read before what has ended: what ends meanwhile is told of twice rather than not at all.
        """

        def work(tx: Tx) -> dict[Kind, tuple[Past, ...]]:
            return {kind: _READS[kind](tx, before[kind], since, limit) for kind in _READS if kind in before}

        return self._database.read(work)

    def created(self, message_ids: list[UUID]) -> tuple[CreatedRow, ...]:
        """These messages, as far as they are requests."""
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("requests_created", ids=ids)) if ids else []
        return tuple(CreatedRow(uuid(id), headers, moment(at)) for id, headers, at in rows)


def micros(at: datetime) -> int:
    """A moment in microseconds."""
    return round(at.timestamp() * 1e6)


def created_at(id: UUID) -> int:
    """When a message was made, in microseconds: a public id begins with its milliseconds."""
    return (id.int >> 80) * 1000


def _created(tx: Tx, before: Position, since: int, limit: int) -> tuple[Past, ...]:
    at, id, _ = before
    last = UUID(int=id) if id != HIGHEST else uuid7(max(0, at) // 1000, b"\xff" * 10)
    rows = tx.rows("created_requests", before=last, since=uuid7(-(-since // 1000), bytes(10)), most=limit)
    found = [CreatedRow(uuid(id), headers, moment(at)) for id, headers, at in rows]
    return tuple(Past((created_at(row.message_id), row.message_id.int, 0), row) for row in found)


def _sending(tx: Tx, before: Position, since: int, limit: int) -> tuple[Past, ...]:
    rows = tx.rows("sending_requests", before=_at(before), before_id=before[1], since=moment(since / 1e6), most=limit)
    return tuple(Past((micros(row.claimed_at or row.updated_at), row.delivery_id, 0), row) for row in _values(rows))


def _tried(tx: Tx, before: Position, since: int, limit: int) -> tuple[Past, ...]:
    rows = tx.rows(
        "tried_requests",
        before=_at(before),
        before_id=before[1],
        before_epoch=before[2],
        since=moment(since / 1e6),
        most=limit,
    )
    return tuple(
        Past((micros(moment(row[5])), row[0], row[1]), None if row[-3] is None else tried_row(row)) for row in rows
    )


def _died(tx: Tx, before: Position, since: int, limit: int) -> tuple[Past, ...]:
    rows = tx.rows(
        "dead_requests",
        before=_at(before),
        before_id=min(before[1] + 1, HIGHEST),
        since=moment(since / 1e6),
        cancelled=True,
        most=limit,
    )
    return tuple(Past((micros(row.updated_at), row.delivery_id, 0), row) for row in _values(rows))


def _delivered(tx: Tx, before: Position, since: int, limit: int) -> tuple[Past, ...]:
    rows = tx.rows("delivered_requests", before=_at(before), before_id=before[1], since=moment(since / 1e6), most=limit)
    return tuple(
        Past((micros(moment(row[9])), row[0], 0), None if row[2] is None else request_row(row)) for row in rows
    )


_READS: Final[dict[Kind, Callable[[Tx, Position, int, int], tuple[Past, ...]]]] = {
    "sending": _sending,
    "tried": _tried,
    "died": _died,
    "delivered": _delivered,
    "created": _created,
}


def _values(rows: list[Any]) -> list[RequestRow]:
    return [request_row(row) for row in rows]


def _at(position: Position) -> datetime:
    return moment(max(0, position[0]) / 1e6)
