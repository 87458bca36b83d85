"""Failed attempts, and recent events. A succeeded attempt has a row in the history only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from todoku.core.outcome import Response
from todoku.store.columns import build, moment, moment_or_none, read_response, uuid_or_none
from todoku.store.database import Database


class Attempt(msgspec.Struct, frozen=True):
    """One failed attempt of a delivery."""

    delivery_id: int
    replay: int
    number: int
    epoch: int
    started_at: datetime | None
    ended_at: datetime
    reason: str
    error: str | None
    worker: UUID | None
    response: Response | None = None
    """The receiver's HTTP response, if there was one."""
    final: bool = False
    """The delivery became a dead letter by this attempt; it may have been replayed since."""
    dead: bool = False
    """The delivery is a dead letter now because of this attempt."""
    message_id: UUID | None = None
    traceback: str | None = None
    """The formatted traceback, if the attempt raised; sealed if its message is."""
    fingerprint: str | None = None
    """Equal for failures of the same type in the same functions."""
    run_ms: int | None = None
    """How long the handler or the send took, in milliseconds. `started_at` is when its worker claimed it."""


class Event(msgspec.Struct, frozen=True):
    """A publish, the end of an attempt, or an act of an operator. `mark` identifies it."""

    at: datetime
    what: str
    delivery_id: int | None
    message_id: UUID | None
    topic: str | None
    destination: str | None
    told: str | None
    mark: str


class AttemptStore:
    """The failed attempts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, delivery_id: int) -> tuple[Attempt, ...]:
        """The failed attempts of a delivery, the oldest first."""
        return self.of_all([delivery_id])

    def of_all(self, delivery_ids: Sequence[int]) -> tuple[Attempt, ...]:
        """The failed attempts of these deliveries, the oldest of each first."""
        ids = list(delivery_ids)
        return tuple(map(attempt, self._database.read(lambda tx: tx.rows("attempts", ids=ids)))) if ids else ()

    def last(self, delivery_ids: Sequence[int]) -> dict[int, Attempt]:
        """The last failed attempt of each of these deliveries that has one."""
        ids = list(delivery_ids)
        rows = self._database.read(lambda tx: tx.rows("last_attempts", ids=ids)) if ids else []
        return {found.delivery_id: found for found in map(attempt, rows)}

    def tail(self, *, since: float, limit: int = 500) -> tuple[Event, ...]:
        """Events after `since` (unix seconds of the database), oldest first: of each kind the last `limit`."""
        return tuple(
            Event(moment(at), what, id, uuid_or_none(message_id), *rest)
            for at, what, id, message_id, *rest in self._database.read(
                lambda tx: tx.rows("tail", since=since, most=limit)
            )
        )


def attempt(row: tuple[Any, ...]) -> Attempt:
    """A row of `attempt_columns` as a value."""
    times = (moment_or_none(row[4]), moment(row[5]))
    worker, response, final, dead, message_id, traceback, fingerprint, run_ms = row[8:16]
    return build(
        Attempt,
        *row[:4],
        *times,
        *row[6:8],
        uuid_or_none(worker),
        read_response(response),
        bool(final),
        bool(dead),
        uuid_or_none(message_id),
        traceback,
        fingerprint,
        run_ms,
    )
