"""Samples of what ended last: successes with their times, failed attempts with their reasons. Cost: bounded."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from todoku.store.columns import moment
from todoku.store.database import Database, Tx

_ROWS_IN_BLOCK: Final = 64
"""About how many rows of the history a block has: a few more on PostgreSQL."""


class Success(msgspec.Struct, frozen=True):
    """A delivery that succeeded. `created_at`: when its message was published; None: it was pruned since.

    `run`: seconds that the successful attempt took; None: not measured.
    """

    finished_at: float
    created_at: float | None
    run: float | None
    queue: str
    destination: str


class Failure(msgspec.Struct, frozen=True):
    """An attempt that failed. `final`: it made a dead letter."""

    ended_at: float
    run: float | None
    reason: str
    error: str | None
    response_status: int | None
    final: bool
    queue: str
    destination: str


class SampleStore:
    """The samples of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def successes(self, *, most: int) -> tuple[Success, ...]:
        """The deliveries that succeeded last, at most of yesterday and today, the newest first."""
        return self._database.read(lambda tx: _successes(tx, most))

    def failures(self, *, since: datetime, most: int) -> tuple[Failure, ...]:
        """The attempts that failed last, the newest first. Those of purged deliveries are left out."""
        rows = self._database.read(lambda tx: tx.rows("failures_tail", since=since, most=most))
        return tuple(
            Failure(float(at), _seconds(run), reason, error, status, bool(final), *names)
            for at, run, reason, error, status, final, *names in rows
        )


def _successes(tx: Tx, most: int) -> tuple[Success, ...]:
    blocks = most // _ROWS_IN_BLOCK + 2
    found = list(map(_success, tx.rows("stray_tail", blocks=blocks)))
    strays = len(found)
    for since, until, last in tx.rows("history_parts"):
        if len(found) - strays >= most:
            break
        after, span = max(0, last - blocks), {"since": moment(since), "until": moment(until)}
        found += map(_success, tx.rows("history_tail", after=after, **span) if last else ())
    return tuple(sorted(found, key=lambda one: one.finished_at, reverse=True)[:most])


def _success(row: tuple[Any, ...]) -> Success:
    at, created, run, queue, destination = row
    return Success(float(at), None if created is None else float(created), _seconds(run), queue, destination)


def _seconds(run_ms: int | None) -> float | None:
    return None if run_ms is None else run_ms / 1000
