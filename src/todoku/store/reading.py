"""Looking: find, story, counts. Nothing here changes a delivery."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.outcome import Response
from todoku.store.database import Tx
from todoku.store.values import (
    AttemptRow,
    AuditRow,
    Count,
    Counts,
    Delivery,
    Entry,
    Filter,
    Limits,
    Page,
    Restriction,
    StoredMessage,
    Story,
    WorkerRow,
    moment,
    moment_or_none,
)

T = TypeVar("T")

COUNTED_EXACTLY: Final = 100_000
"""Up to so many deliveries are counted one by one; more are sampled."""

_PIECES: Final = 256
_SHARE: Final = 100
"""One hundredth of each of about 256 pieces of the id range is read."""


def find(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    """One page, newest first."""
    if which.status == "succeeded":
        return _find_history(tx, which, cursor, limit)
    before = None if cursor is None else _cursor(cursor, 1)[0]
    rows = tx.rows("find", **msgspec.structs.asdict(which), before=before, most=limit + 1)
    items = tuple(delivery(row) for row in rows[:limit])
    return Page(items, str(items[-1].id) if len(rows) > limit else None)


_UNFINISHED: Final = frozenset({"status", "reason", "due"})


def _find_history(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    filters = {name: value for name, value in msgspec.structs.asdict(which).items() if name not in _UNFINISHED}
    seq, before = (None, None) if cursor is None else _cursor(cursor, 2)
    if which.reason is not None or which.due:
        return Page((), None)  # a success has no reason, and waits for nothing
    rows = tx.rows("find_history", **filters, before=before, before_seq=seq, most=limit + 1)
    items = tuple(delivery(row[:-1]) for row in rows[:limit])
    return Page(items, f"{rows[limit - 1][-1]}.{items[-1].id}" if len(rows) > limit else None)


_NUMBER: Final = re.compile("[0-9]{1,18}")  # more digits fit no id


def _cursor(text: str, parts: int) -> tuple[int, ...]:
    numbers = text.split(".")
    if len(numbers) != parts or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise InvalidMessage(f"{text!r} is no cursor of this listing", hint="pass back `next` of the page before")
    return tuple(int(number) for number in numbers)


def story(tx: Tx, message_id: UUID) -> Story | None:
    """A message with everything that happened to it."""
    found = tx.rows("message", message_id=message_id)
    if not found:
        return None
    (row,) = found
    message = _built(StoredMessage, row[0], uuid(row[1]), *row[2:-1], moment(row[-1]))
    which = Filter(message_id=message_id)
    deliveries = find(tx, which, None, 10_000).items + _find_history(tx, which, None, 10_000).items
    ids = [delivery.id for delivery in deliveries]
    attempts = tx.rows("attempts", ids=ids) if ids else []
    audits = tx.rows("audits", targets=[f"message:{message_id}", *(f"delivery:{id}" for id in ids)])
    return Story(
        message,
        tuple(sorted(deliveries, key=lambda delivery: delivery.id)),
        tuple(attempt(row) for row in attempts),
        tuple(AuditRow(moment(row[0]), *row[1:]) for row in audits),
    )


def attempt(row: tuple[Any, ...]) -> AttemptRow:
    """A row of `attempts` as a value."""
    times = (moment_or_none(row[4]), moment(row[5]))
    return _built(AttemptRow, *row[:4], *times, *row[6:8], uuid_or_none(row[8]), response(row[9]))


def response(text: str | None) -> Response | None:
    """What a receiver answered, as it is stored."""
    return None if text is None else msgspec.json.decode(text, type=Response)


def entry(tx: Tx, scope: str, key_hash: str) -> Entry | None:
    """A ledger entry."""
    for digest, state, message_id, status, response, created, updated in tx.rows(
        "entry", scope=scope, key_hash=key_hash
    ):
        return Entry(digest, state, uuid_or_none(message_id), status, response, moment(created), moment(updated))
    return None


def limits(tx: Tx) -> Limits:
    """What keeps queues and destinations back, and the workers that share it."""
    found: dict[str, list[Restriction]] = {"queue": [], "destination": []}
    alive: list[UUID] = []
    for kind, name, paused, concurrency, rate, open_until, failures in tx.rows("limits"):
        if kind == "worker":
            alive.append(UUID(name))
        else:
            found[kind].append(Restriction(name, bool(paused), concurrency, rate, float(open_until), failures))
    return Limits(tuple(found["queue"]), tuple(found["destination"]), tuple(sorted(alive)))


def workers(tx: Tx) -> tuple[WorkerRow, ...]:
    """The leases there are."""
    return tuple(
        WorkerRow(uuid(id), name, state, moment(started), moment(expires), held)
        for id, name, state, started, expires, held in tx.rows("workers")
    )


def counted(tx: Tx, draw: Callable[[], float]) -> Counts:
    """Count now: exactly if there are few, else from windows of the id range. `draw` gives chance in [0, 1)."""
    ((some, first, last),) = tx.rows("size", most=COUNTED_EXACTLY + 1)
    ((succeeded,),) = tx.rows("count_history")
    if some <= COUNTED_EXACTLY:
        rows = tx.rows("count_deliveries", most=COUNTED_EXACTLY)
        return Counts(tuple(Count(*row) for row in rows), int(succeeded), exact=succeeded <= COUNTED_EXACTLY)
    # Dead letters by their own index: the first one is an alert, and a sample would say none, or hundreds.
    dead = [Count("aborted", *row) for row in tx.rows("count_dead", most=COUNTED_EXACTLY + 1)]
    few = sum(count.number for count in dead) <= COUNTED_EXACTLY
    sampled = [
        Count(status, destination, reason, round(number))
        for status, destination, reason, number in tx.rows("count_sample", windows=windows(tx, first, last, draw))
        if status != "aborted" or not few
    ]
    return Counts((*(dead if few else ()), *sampled), int(succeeded), exact=False)


def windows(tx: Tx, first: int, last: int, draw: Callable[[], float]) -> list[dict[str, float]]:
    """Windows to sample the id range by: a hundredth of it, with the weight of a row in each."""
    return [_window(low, high, draw()) for low, high in _pieces(tx, first, last)]


def _pieces(tx: Tx, first: int, last: int) -> list[tuple[int, int]]:
    """Pieces of the id range, each with a row at both ends: gaps between old rows and the backlog are left out."""
    pieces = [(first, last)]
    for _ in range(4):
        each = _PIECES // len(pieces)
        if each < 2:
            break
        cuts = [(low, high, (high - low) // each + 1) for low, high in pieces]
        parts = [
            (start, min(start + step - 1, high)) for low, high, step in cuts for start in range(low, high + 1, step)
        ]
        pieces = tx.rows("edges", parts=[{"low": low, "high": high} for low, high in parts])
    return pieces


def _window(low: int, high: int, chance: float) -> dict[str, float]:
    """A hundredth of a piece, somewhere in it, and how many times it goes into the piece."""
    size = high - low + 1
    width = max(1, size // _SHARE)
    return {"start": low + int(chance * (size - width + 1)), "width": width, "weight": size / width}


def remembered(tx: Tx, max_age: float) -> Counts | None:
    """The counts somebody made at most `max_age` seconds ago, with their age."""
    for age, value in tx.rows("count_read", name="deliveries"):
        if 0 <= age <= max_age:
            return msgspec.structs.replace(msgspec.json.decode(value, type=Counts), age=age)
    return None


def remember(tx: Tx, counts: Counts) -> None:
    """Leave counts for the next one who asks."""
    tx.rows("count_write", name="deliveries", value=msgspec.json.encode(counts).decode())


def delivery(row: tuple[Any, ...]) -> Delivery:
    """A row of `find` as a value."""
    id, message_id, *middle, worker, cancel_requested, next_run_at, created_at, updated_at, reason, error = row
    times: tuple[datetime, datetime | None, datetime] = (
        moment(next_run_at), moment_or_none(created_at), moment(updated_at),
    )  # fmt: skip
    return _built(
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


def _built(kind: Callable[..., T], *fields: object) -> T:
    """A value of the fields of a row: their number and types are the query's."""
    return kind(*fields)


def uuid(value: UUID | str) -> UUID:
    """An id as the database gives it: PostgreSQL has a type for it, SQLite has text."""
    return value if isinstance(value, UUID) else UUID(value)


def uuid_or_none(value: UUID | str | None) -> UUID | None:
    """An id as the database gives it, if there is one."""
    return None if value is None else uuid(value)
