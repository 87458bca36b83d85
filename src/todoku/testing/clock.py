"""Time in a test: the database has a clock that stands still until the test moves it; schedules fire on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from todoku.app import App
from todoku.core.errors import InvalidAct
from todoku.core.outcome import Duration, seconds
from todoku.engine.worker.schedule_firing import Scheduler
from todoku.store.database import Database
from todoku.store.values import moment


def fire(box: App) -> None:
    """Fire every schedule whose slot has come, by the database's clock: its messages are stored, and `drain` runs them.

    `drain` alone fires nothing. With `frozen`, `clock.tick(86_400)` and then this is tomorrow.
    """
    worker = Scheduler(box.store, box.plans, box.settings, box.telemetry, on_fired=box.outbox.wake, on_failure=_raised)
    worker.announce()  # nobody did while the clock was moved, and what nobody announces is not fired
    worker.fire_due()


def _raised(error: Exception) -> None:
    raise error


class Clock:
    """The database's clock, stopped (I12)."""

    def __init__(self, database: Database, now: float) -> None:
        self._database = database
        self._now = now
        database.set_clock(now)

    @property
    def now(self) -> datetime:
        """What the database takes for now."""
        return moment(self._now)

    def tick(self, duration: Duration) -> None:
        """Let so many seconds pass."""
        self._set(self._now + seconds(duration, what="tick(…)"))

    def move_to(self, at: datetime) -> None:
        """Let time pass until `at`."""
        self._set(_unix(at))

    def _set(self, now: float) -> None:
        if now < self._now:
            raise InvalidAct(f"{moment(now)} has passed, it is {self.now}", hint="a database's clock goes forward")
        self._now = now
        self._database.set_clock(now)


@contextmanager
def frozen(box: App, at: datetime | None = None) -> Iterator[Clock]:
    """Stop the clock of the App's database, now or `at` a moment, while the block runs: `clock.tick(3600)` moves it.

    On PostgreSQL everybody who uses the App's schema sees it, so it is for a schema that belongs to the test. What a
    handler asks of Python's own clock is not changed.
    """
    database = box.store.database
    clock = Clock(database, box.store.ping() if at is None else _unix(at))
    try:
        yield clock
    finally:
        database.set_clock(None)


def _unix(at: datetime) -> float:
    if at.tzinfo is None:
        raise InvalidAct(f"{at!r} has no time zone", hint="use an aware datetime: datetime(2026, 1, 1, tzinfo=UTC)")
    return at.timestamp()
