"""Time in a test: a database clock that stands still until the test moves it, and schedules that fire on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from todoku.app import App
from todoku.core.errors import InvalidAct
from todoku.core.outcome import Duration, seconds
from todoku.engine.worker.maintenance import Scheduler
from todoku.store.columns import moment
from todoku.store.database import Database


def fire(box: App) -> None:
    """Fires every schedule that is due by the database's clock: stores its messages, which `drain` then runs.

    `drain` alone fires nothing. To fire tomorrow's schedules, use `frozen`, then `clock.tick(86_400)`, then this.
    """
    scheduling = Scheduler(
        box.store, box.plans, box.settings, box.telemetry, on_fired=box.outbox.wake, on_failure=_raise
    )
    scheduling.announce()  # only announced schedules fire, and no worker announced them while the clock moved
    scheduling.fire_due()


def _raise(error: Exception) -> None:
    raise error


class Clock:
    """The database's clock, stopped (I12)."""

    def __init__(self, database: Database, now: float) -> None:
        self._database = database
        self._now = now
        database.set_clock(now)

    @property
    def now(self) -> datetime:
        """The time of the database."""
        return moment(self._now)

    def tick(self, duration: Duration) -> None:
        """Moves the clock forward by a duration."""
        self._set(self._now + seconds(duration, what="tick(…)"))

    def move_to(self, at: datetime) -> None:
        """Moves the clock forward to `at`."""
        self._set(_unix(at))

    def _set(self, now: float) -> None:
        if now < self._now:
            raise InvalidAct(f"{moment(now)} is before {self.now}", hint="the clock can only move forward")
        self._now = now
        self._database.set_clock(now)


@contextmanager
def frozen(box: App, at: datetime | None = None) -> Iterator[Clock]:
    """Stops the clock of the App's database, now or `at` a time, while the block runs: `clock.tick(3600)` moves it.

    On PostgreSQL this affects every user of the App's schema, so give the test its own schema. Python's clock, which
    handlers may read, is not changed.
    """
    database = box.store.database
    clock = Clock(database, box.store.ping() if at is None else _unix(at))
    try:
        yield clock
    finally:
        database.set_clock(None)


@contextmanager
def skip_sleeps(box: App) -> Iterator[None]:
    """While the block runs, sleeps that runs of workflows begin are over at once: `with skip_sleeps(box): box.drain()`.

    Each is stored as a step, as ever. Waits for signals and pauses between attempts are not skipped.
    """
    sleeps = box.flows.sleeps
    sleeps.skipped = True
    try:
        yield
    finally:
        sleeps.skipped = False


def _unix(at: datetime) -> float:
    if at.tzinfo is None:
        raise InvalidAct(f"{at!r} has no time zone", hint="use an aware datetime: datetime(2026, 1, 1, tzinfo=UTC)")
    return at.timestamp()
