"""Requests as people look for them: by id, dead or waiting, in pages whose cost does not grow with how deep they are.

What a request says of itself is in its message, so filters about it are not the database's: it gives rows in order,
and whoever asks picks from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.outcome import Response
from todoku.store.columns import EPOCH, moment, moment_or_none, uuid
from todoku.store.columns import read_response as answer
from todoku.store.database import Database, Tx

LAST: Final = (datetime(9999, 12, 31, tzinfo=UTC), (1 << 63) - 1)
"""A position behind everything: pages go from here downwards."""


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery of a request with what its message says, but for the body. A finished one is `succeeded`."""

    delivery_id: int
    message_seq: int
    message_id: UUID
    headers: str | None
    created_at: datetime
    status: str
    queue: str
    attempts: int
    next_run_at: datetime
    updated_at: datetime
    reason: str | None
    error: str | None
    replay_count: int
    cancel_requested: bool
    claimed_at: datetime | None

    @property
    def position(self) -> tuple[datetime, int]:
        """Where it stands among dead letters."""
        return self.updated_at, self.delivery_id


class TriedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt of a request. `final`: none followed by itself. `dead`: it is why the delivery is dead now."""

    delivery_id: int
    epoch: int
    replay: int
    number: int
    started_at: datetime | None
    ended_at: datetime
    reason: str
    error: str | None
    response: Response | None
    final: bool
    dead: bool
    message_id: UUID
    headers: str | None
    created_at: datetime


class BodyRow(msgspec.Struct, frozen=True):
    """What is inside a message, sealed or not."""

    message_id: UUID
    topic: str
    content_type: str
    raw: bytes


class RequestRows:
    """The requests of one database. Only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, message_ids: Sequence[UUID]) -> tuple[RequestRow, ...]:
        """The deliveries of these messages, finished or not, in the order of their ids."""
        ids = [str(id) for id in message_ids]
        return _rows(self._database.read(lambda tx: tx.rows("requests_of", ids=ids)) if ids else [])

    def dead(
        self,
        before: tuple[datetime, int] = LAST,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        cancelled: bool = False,
        limit: int,
    ) -> tuple[RequestRow, ...]:
        """Dead letters, those that died last first, from a position on; with `cancelled` what was cancelled, too."""

        def work(tx: Tx) -> list[Any]:
            at, id = before if until is None or before[0] < until else (until, 0)
            return tx.rows(
                "dead_requests",
                before=at,
                before_id=id,
                since=since or EPOCH,
                cancelled=cancelled,
                most=limit,
            )

        return _rows(self._database.read(work))

    def dead_by_ids(self, delivery_ids: Sequence[int]) -> tuple[RequestRow, ...]:
        """Those of these deliveries that are dead letters, by the primary key."""
        ids = list(delivery_ids)
        return _rows(self._database.read(lambda tx: tx.rows("dead_requests_of", ids=ids)) if ids else [])

    def waiting(self, *, after: int, limit: int) -> tuple[RequestRow, ...]:
        """What waits or runs and was not asked to stop, the oldest first, those with an id greater than `after`."""
        return _rows(self._database.read(lambda tx: tx.rows("waiting_requests", after=after, most=limit)))

    def last_attempts(self, delivery_ids: Sequence[int]) -> dict[int, TriedRow]:
        """The last failed attempt of each of these deliveries that has one."""
        ids = list(delivery_ids)
        rows = self._database.read(lambda tx: tx.rows("last_tried", ids=ids)) if ids else []
        return {row.delivery_id: row for row in map(tried_row, rows)}

    def attempts(self, delivery_ids: Sequence[int]) -> tuple[TriedRow, ...]:
        """Every failed attempt of these deliveries, the oldest first."""
        ids = list(delivery_ids)
        rows = self._database.read(lambda tx: tx.rows("attempts_of_requests", ids=ids)) if ids else []
        return tuple(map(tried_row, rows))

    def bodies(self, message_ids: Sequence[UUID]) -> dict[UUID, BodyRow]:
        """What is inside these messages."""
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("request_bodies", ids=ids)) if ids else []
        return {uuid(id): BodyRow(uuid(id), topic, kind, bytes(raw or b"")) for id, topic, kind, raw in rows}


def _rows(rows: list[Any]) -> tuple[RequestRow, ...]:
    return tuple(map(request_row, rows))


def request_row(row: Any) -> RequestRow:
    """A row of `request_columns` as a value."""
    id, seq, message_id, headers, created, status, queue, attempts, next_run_at, updated, *rest = row
    reason, error, replay_count, cancel_requested, claimed_at = rest
    return RequestRow(
        delivery_id=id,
        message_seq=seq,
        message_id=uuid(message_id),
        headers=headers,
        created_at=moment(created),
        status=status,
        queue=queue,
        attempts=attempts,
        next_run_at=moment(next_run_at),
        updated_at=moment(updated),
        reason=reason,
        error=error,
        replay_count=replay_count,
        cancel_requested=bool(cancel_requested),
        claimed_at=moment_or_none(claimed_at),
    )


def tried_row(row: Any) -> TriedRow:
    """A row of `tried_columns` as a value."""
    id, epoch, replay, number, started, ended, reason, error, response, final, dead, message_id, headers, created = row
    return TriedRow(
        delivery_id=id,
        epoch=epoch,
        replay=replay,
        number=number,
        started_at=moment_or_none(started),
        ended_at=moment(ended),
        reason=reason,
        error=error,
        response=answer(response),
        final=bool(final),
        dead=bool(dead),
        message_id=uuid(message_id),
        headers=headers,
        created_at=moment(created),
    )
