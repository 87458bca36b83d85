"""Numbers: deliveries by status, how far behind the workers are, dead letters by reason, full gates, rates over time.

Every number has a bounded cost: exact while there are few rows, sampled beyond.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from todoku.core.msgspec_warmup import warm_up
from todoku.store.columns import moment
from todoku.store.database import Database, Tx

COUNTED_EXACTLY: Final = 100_000
"""Up to this number deliveries are counted one by one; more are sampled."""

SERIES_EXACTLY: Final = 200_000
"""Up to this number the rows of a span are counted one by one; more are sampled evenly."""

LAG_COUNTED: Final = 10_000
"""The number of rows counted in each place; with more, the whole is estimated from a hundredth of the rows."""

_PIECES: Final = 256
_SHARE: Final = 100
_WIDEST: Final = 40
"""One hundredth of each of about 256 pieces of the id range is read, and at most so many ids of each."""

_DEAD_COUNTED: Final = 1_000_000
_DEAD_GROUPS: Final = 500
_GATE_COUNTED: Final = 1000


class Count(msgspec.Struct, frozen=True):
    """How many deliveries have this status, destination and reason. `hook`: they tell a hook of an end."""

    status: str
    destination: str
    reason: str
    number: int
    hook: bool = False


class Counts(msgspec.Struct, frozen=True):
    """Deliveries by status, destination and reason. `exact` is False where they were sampled.

    A delivery to a hook is not one that the application published: it is counted apart.
    """

    rows: tuple[Count, ...]
    succeeded: int
    exact: bool
    age: float = 0.0
    succeeded_hooks: int = 0

    def of(self, status: str) -> int:
        """How many deliveries are in `status`, without those of hooks."""
        if status == "succeeded":
            return self.succeeded
        return sum(row.number for row in self.rows if row.status == status and not row.hook)

    def of_hooks(self, status: str) -> int:
        """How many deliveries of hooks are in `status`."""
        if status == "succeeded":
            return self.succeeded_hooks
        return sum(row.number for row in self.rows if row.status == status and row.hook)


warm_up(Counts)


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far behind the workers are: `due` and not claimed, the `oldest` of these due for that many seconds; in flight
    (`sending`), of which `stuck` for too long or without a live owner; `dead` letters. `exact` is False if sampled."""

    due: int
    oldest: float
    sending: int
    stuck: int
    dead: int
    exact: bool


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead letters of one reason, destination and, if asked for, fingerprint, with the newest of them as example."""

    reason: str
    destination: str
    number: int
    since: datetime
    until: datetime
    newest: int
    error: str | None
    fingerprint: str | None = None


class FullGate(msgspec.Struct, frozen=True):
    """A key at its limit, and how many of its deliveries wait: counted up to a thousand."""

    queue: str
    destination: str
    key: str
    concurrency: int
    rate: float | None
    running: int
    waiting: int


class ParkedKeys(msgspec.Struct, frozen=True):
    """How many keys wait for a dead letter of theirs, and how many deliveries: counted up to ten thousand.

    `example` is one of these deliveries: `explain` names the dead letter that it waits for.
    """

    keys: int
    waiting: int
    example: int | None


class Point(msgspec.Struct, frozen=True):
    """What ended in one stretch of time: deliveries that succeeded, attempts that failed."""

    at: datetime
    succeeded: int
    failed: int


class Series(msgspec.Struct, frozen=True):
    """Stretches in order, empty ones included. `exact` is False if sampled."""

    points: tuple[Point, ...]
    exact: bool


class Statistics:
    """The numbers of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def counts(self, *, max_age: float = 0.0, exactly: int | None = None) -> Counts:
        """Deliveries by status, destination and reason, at most `max_age` seconds old.

        Up to `exactly`, or 100,000, they are counted one by one. More are sampled, and what that came to is kept for
        every process that asks alike.
        """
        name = "deliveries" if exactly is None else f"deliveries beyond {exactly}"
        if max_age > 0 and (stored := self._database.read(lambda tx: _stored_counts(tx, name, max_age))) is not None:
            return stored
        counts = self._database.read(lambda tx: count_now(tx, random.random, exactly))
        if not counts.exact:
            value = msgspec.json.encode(counts).decode()
            self._database.write("count", lambda tx: tx.rows("count_write", name=name, value=value))
        return counts

    def lag(self, *, stuck_after: float) -> Lag:
        """How far behind the workers are. `stuck`: in flight for more than `stuck_after` seconds, or without a lease.

        Cost: the number of places, not of rows; beyond 10,000 rows of a place it is sampled.
        """
        return self._database.read(lambda tx: _lag(tx, stuck_after=stuck_after, draw=random.random))

    def dead_letters(self, *, by_fingerprint: bool = False) -> tuple[DeadGroup, ...]:
        """Dead letters by reason, destination and, if asked for, fingerprint: the 500 largest groups.

        They are counted from an index; on PostgreSQL at most 1,000,000 of them.
        """
        query = "dead_causes" if by_fingerprint else "dead_groups"
        rows = self._database.read(lambda tx: tx.rows(query, most=_DEAD_COUNTED, groups=_DEAD_GROUPS))
        return tuple(
            DeadGroup(reason, destination, number, moment(since), moment(until), *example)
            for reason, destination, number, since, until, *example in rows
        )

    def full_gates(self, *, limit: int = 100) -> tuple[FullGate, ...]:
        """Keys that are at their limit while more deliveries of theirs wait, those with the most waiting first."""
        rows = self._database.read(lambda tx: tx.rows("full_gates", counted=_GATE_COUNTED, most=limit))
        return tuple(FullGate(*row) for row in rows)

    def parked(self) -> ParkedKeys:
        """Deliveries in order whose key waits for a dead letter, until a person replays or purges it (I10)."""
        return ParkedKeys(*self._database.read(lambda tx: tx.rows("count_parked", most=LAG_COUNTED))[0])

    def series(self, *, since: datetime, until: datetime, width: int) -> Series:
        """Numbers for each `width` seconds from `since` to `until`, both on its multiples. Cost: bounded."""
        # The blocks of a span are found by a BRIN index, which is read by a bitmap.
        return self._database.read(lambda tx: _series(tx, since, until, width), pinned=False)


def _lag(tx: Tx, *, stuck_after: float, draw: Callable[[], float]) -> Lag:
    places = [
        {"queue": queue, "destination": destination, "priority": priority}
        for queue, destination, priority, _ in tx.rows("waiting", destinations=None)
    ]
    found: list[tuple[int, float, int]] = tx.rows("lag_due", places=places, most=LAG_COUNTED) if places else []
    found = [*found, *tx.rows("lag_apart", most=LAG_COUNTED)]
    ((sending, stuck, dead),) = tx.rows("lag_held", stuck_after=stuck_after, most=LAG_COUNTED)
    due = sum(number for number, _, _ in found)
    exact = all(looked_at < LAG_COUNTED for _, _, looked_at in found)
    if not exact or dead >= LAG_COUNTED:
        estimated_due, estimated_dead = _estimate(tx, draw)
        due = due if exact else max(due, estimated_due)
        dead = max(dead, estimated_dead) if dead >= LAG_COUNTED else dead
    return Lag(
        due=due,
        oldest=max([0.0, *(float(age) for _, age, _ in found)]),
        sending=sending,
        stuck=stuck,
        dead=dead,
        exact=exact and dead < LAG_COUNTED,
    )


def _estimate(tx: Tx, draw: Callable[[], float]) -> tuple[int, int]:
    ((due, dead),) = tx.rows("lag_sample", windows=_windows(tx, draw))
    return round(due or 0), round(dead or 0)


def count_now(tx: Tx, draw: Callable[[], float], exactly: int | None = None) -> Counts:
    """Counts exactly if there are few rows, else from windows of the id range. `draw` gives chance in [0, 1)."""
    exactly = COUNTED_EXACTLY if exactly is None else exactly
    ((some,),) = tx.rows("size", most=exactly + 1)
    succeeded, of_hooks, exact = _count_succeeded(tx)
    if some <= exactly:
        rows = tx.rows("count_deliveries", most=exactly)
        return Counts(_counts(rows), succeeded, exact=exact, succeeded_hooks=of_hooks)
    # Dead letters by their own index: the first one is an alert, and a sample would say none, or hundreds.
    dead = _counts([("aborted", *row) for row in tx.rows("count_dead", most=COUNTED_EXACTLY + 1)])
    few = sum(count.number for count in dead) <= COUNTED_EXACTLY
    sampled = _counts(tx.rows("count_sample", windows=_windows(tx, draw)))
    shown = [count for count in sampled if count.status != "aborted" or not few]
    return Counts((*(dead if few else ()), *shown), succeeded, exact=False, succeeded_hooks=of_hooks)


def _counts(rows: Sequence[tuple[str, str, str, float, bool]]) -> tuple[Count, ...]:
    return tuple(
        Count(status, destination, reason, round(number), bool(hook))
        for status, destination, reason, number, hook in rows
    )


def _count_succeeded(tx: Tx) -> tuple[int, int, bool]:
    """How many deliveries succeeded: published ones, those of hooks, and whether the numbers are exact.

    Beyond what is counted one by one, the share of hooks in a part of the history is taken for that of all.
    """
    ((all,),) = tx.rows("count_history")
    if not tx.rows("has_hooks")[0][0]:
        return int(all), 0, all <= COUNTED_EXACTLY
    ((looked_at, found),) = tx.rows("count_hook_history")
    of_hooks = int(found) if all <= COUNTED_EXACTLY else round(all * found / max(1, looked_at))
    return int(all) - of_hooks, of_hooks, all <= COUNTED_EXACTLY


def _windows(tx: Tx, draw: Callable[[], float]) -> list[dict[str, float]]:
    """Windows by which the id range is sampled, with the weight of a row in each.

    None where the database samples blocks by itself (PostgreSQL).
    """
    ((first, last),) = tx.rows("id_range")
    if first is None or last is None:
        return []
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
    """A small part of a piece, somewhere in it, and how many times it goes into the piece."""
    size = high - low + 1
    width = max(1, min(_WIDEST, size // _SHARE))
    return {"start": low + int(chance * (size - width + 1)), "width": width, "weight": size / width}


def _stored_counts(tx: Tx, name: str, max_age: float) -> Counts | None:
    """The counts that another process stored at most `max_age` seconds ago, with their age."""
    for age, value in tx.rows("count_read", name=name):
        if 0 <= age <= max_age:
            return msgspec.structs.replace(msgspec.json.decode(value, type=Counts), age=age)
    return None


def _series(tx: Tx, since: datetime, until: datetime, width: int) -> Series:
    ((about,),) = tx.rows("series_size", since=since, until=until)
    step = max(1, round(about / SERIES_EXACTLY))
    if step == 1:
        found = tx.rows("series", since=since, until=until, width=width)
    else:
        found = tx.rows("series_sampled", since=since, until=until, width=width, step=step)
    succeeded = {int(at): int(number) for at, number in found}
    rows = tx.rows("series_failed", since=since, until=until, width=width, most=SERIES_EXACTLY)
    failed = {int(at): int(number) for at, number in rows}
    starts = range(int(since.timestamp()), int(until.timestamp()), width)
    points = tuple(Point(moment(at), succeeded.get(at, 0), failed.get(at, 0)) for at in starts)
    return Series(points, exact=step == 1 and sum(failed.values()) < SERIES_EXACTLY)
