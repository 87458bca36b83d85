"""Deliveries as people look at them: filtered, in pages, one by one."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.store.columns import build, moment, moment_or_none, uuid_or_none
from todoku.store.database import Database, Tx


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries: all that match every field that is not None."""

    ids: tuple[int, ...] | None = None
    message_id: UUID | None = None
    status: str | None = None
    topic: str | None = None
    destination: str | None = None
    queue: str | None = None
    reason: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    due: bool = False


class Delivery(msgspec.Struct, frozen=True):
    """A delivery: one message on its way to one destination."""

    id: int
    message_id: UUID | None
    topic: str | None
    key: str | None
    destination: str
    queue: str
    lane: int | None
    priority: int
    status: str
    attempts: int
    max_attempts: int
    lost: int
    snoozes: int
    replay_count: int
    epoch: int
    worker: UUID | None
    cancel_requested: bool
    next_run_at: datetime
    created_at: datetime | None
    updated_at: datetime
    reason: str | None
    error: str | None


class Standing(msgspec.Struct, frozen=True):
    """The state of a delivery now, and the JSON text of its result if one was stored."""

    id: int
    status: str
    reason: str | None
    error: str | None
    result: str | None


class Page(msgspec.Struct, frozen=True):
    """Deliveries, newest first, and the cursor of the next page (None: this is the last)."""

    items: tuple[Delivery, ...]
    next: str | None


class DeliveryStore:
    """The deliveries of one database. Only reads: workers change them by claims, operators by acts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page, newest first. `status="succeeded"` reads the history, anything else the unfinished deliveries."""
        return self._database.read(lambda tx: find(tx, which, cursor, limit))

    def standing(self, message_id: UUID, destination: str) -> Standing | None:
        """The state of one delivery of a message, with its result if one was stored; None: there is no such."""
        rows = self._database.read(lambda tx: tx.rows("standing", message_id=message_id, destination=destination))
        return Standing(*rows[0]) if rows else None

    def result(self, delivery_id: int) -> str | None:
        """The JSON text of a delivery's result, if one was stored."""
        rows = self._database.read(lambda tx: tx.rows("result", id=delivery_id))
        return rows[0][0] if rows else None


def find(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    """As `DeliveryStore.find`, in an open transaction."""
    if which.status == "succeeded":
        return find_history(tx, which, cursor, limit)
    before = None if cursor is None else _cursor(cursor, 1)[0]
    rows = tx.rows("find", **msgspec.structs.asdict(which), before=before, most=limit + 1)
    items = tuple(delivery(row) for row in rows[:limit])
    return Page(items, str(items[-1].id) if len(rows) > limit else None)


_UNFINISHED: Final = frozenset({"status", "reason", "due"})


def find_history(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    """As `find`, among deliveries that succeeded."""
    filters = {name: value for name, value in msgspec.structs.asdict(which).items() if name not in _UNFINISHED}
    seq, before = (None, None) if cursor is None else _cursor(cursor, 2)
    if which.reason is not None or which.due:
        return Page((), None)  # a succeeded delivery has no reason, and is not due
    rows = tx.rows("find_history", **filters, before=before, before_seq=seq, most=limit + 1)
    items = tuple(delivery(row[:-1]) for row in rows[:limit])
    return Page(items, f"{rows[limit - 1][-1]}.{items[-1].id}" if len(rows) > limit else None)


_NUMBER: Final = re.compile("[0-9]{1,18}")  # more digits fit no id


def _cursor(text: str, parts: int) -> tuple[int, ...]:
    numbers = text.split(".")
    if len(numbers) != parts or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise InvalidMessage(f"{text!r} is no cursor of this listing", hint="pass back `next` of the page before")
    return tuple(int(number) for number in numbers)


def delivery(row: tuple[Any, ...]) -> Delivery:
    """A row of `find` as a value."""
    id, message_id, *middle, worker, cancel_requested, next_run_at, created_at, updated_at, reason, error = row
    times: tuple[datetime, datetime | None, datetime] = (
        moment(next_run_at), moment_or_none(created_at), moment(updated_at),
    )  # fmt: skip
    return build(
        Delivery,
        id,
        uuid_or_none(message_id),
        *middle,
        uuid_or_none(worker),
        bool(cancel_requested),
        *times,
        reason,
        error,
    )
