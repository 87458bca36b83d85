"""The guardrail: after `limit` failed pings of the database in a row the daemon is not ready, until one succeeds.

It logs a bounded number of lines: the first failure, the trip, one a minute while it lasts, the recovery.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from todoku.core.errors import DatabaseBusy, TodokuError
from todoku.engine.observability.log import Log

PING_EVERY: Final = 1.0
PING_TIMEOUT: Final = 6.0
"""Seconds. A ping that hangs longer counts as `limit` failed ones."""

_REMIND_EVERY: Final = 60.0


class Guardrail:
    """Counts failed pings; thread-safe. `limit` failures in a row trip it, one answer resets it."""

    def __init__(self, limit: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures = 0
        self._first = 0.0
        self._reminded = 0.0
        self._why = ""

    @property
    def tripped(self) -> bool:
        """Whether the database counts as unavailable."""
        return self._failures >= self._limit

    @property
    def why(self) -> str:
        """The error of the last ping; empty if it was answered."""
        return self._why

    def record_answer(self) -> None:
        """Resets the count: a ping was answered."""
        with self._lock:
            if self._failures:
                gone = self._monotonic() - self._first
                Log(part="supervisor").warning("DATABASE_RECOVERED", seconds=round(gone, 1), failures=self._failures)
            self._failures, self._why = 0, ""

    def record_failure(self, why: str, *, counts: int = 1) -> None:
        """Adds `counts` failures: a ping failed."""
        now = self._monotonic()
        with self._lock:
            before, self._failures, self._why = self._failures, self._failures + counts, why
            if before == 0:
                self._first = now
                Log(part="supervisor").warning("DATABASE_FAILED", error=why)
            if before < self._limit <= self._failures:
                self._reminded = now
                Log(part="supervisor").error("GUARDRAIL_TRIPPED", error=why, failures=self._failures)
            elif self.tripped and now - self._reminded >= _REMIND_EVERY:
                self._reminded = now
                Log(part="supervisor").error("DATABASE_STILL_FAILING", error=why, seconds=round(now - self._first))


class Pinger:
    """A thread that pings the database. `check` notices a ping that does not return."""

    def __init__(self, ping: Callable[[], object], guardrail: Guardrail, limit: int) -> None:
        self._ping = ping
        self._guardrail = guardrail
        self._limit = limit
        self._pinged_at: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku-ping", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the running ping, without waiting for it."""
        self._stopped.set()

    def check(self) -> None:
        """Counts a ping that hangs as failed. Another thread calls this often."""
        pinged_at = self._pinged_at
        if pinged_at is not None and time.monotonic() - pinged_at > PING_TIMEOUT and not self._guardrail.tripped:
            self._guardrail.record_failure(f"a ping has been waiting for {PING_TIMEOUT:.0f} s", counts=self._limit)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._pinged_at = time.monotonic()
            try:
                self._ping()
            except DatabaseBusy:
                self._guardrail.record_answer()  # the database answers: another transaction holds a lock
            except TodokuError as error:
                self._guardrail.record_failure(str(error))
            else:
                self._guardrail.record_answer()
            self._pinged_at = None
            self._stopped.wait(PING_EVERY)
