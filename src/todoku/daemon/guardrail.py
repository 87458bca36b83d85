"""The guardrail: so many failed pings of the database in a row, and the daemon is not ready until one succeeds.

It says so with a bounded number of lines: the first failure, the trip, one a minute while it lasts, the recovery.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from todoku.core.errors import DatabaseBusy, TodokuError
from todoku.engine.observability.log import Log

PING_EVERY: Final = 1.0
UNANSWERED: Final = 6.0
"""A ping that hangs for so long counts as `limit` failed ones: nobody is there."""

_REMIND_EVERY: Final = 60.0


class Guardrail:
    """Counts failures; thread-safe. `limit` in a row trip it, one answer resets it."""

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
        """Whether the database counts as gone."""
        return self._failures >= self._limit

    @property
    def why(self) -> str:
        """What the last failed ping said; empty if the last one was answered."""
        return self._why

    def answered(self) -> None:
        """A ping came back."""
        with self._lock:
            if self._failures:
                gone = self._monotonic() - self._first
                Log(part="supervisor").warning("DATABASE_RECOVERED", seconds=round(gone, 1), failures=self._failures)
            self._failures, self._why = 0, ""

    def failed(self, why: str, *, counts: int = 1) -> None:
        """A ping did not."""
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
    """A thread that pings, and a look at it that notices a ping which never comes back."""

    def __init__(self, ping: Callable[[], object], guardrail: Guardrail, limit: int) -> None:
        self._ping = ping
        self._guardrail = guardrail
        self._limit = limit
        self._asked: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku-ping", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the ping in flight, which is not waited for."""
        self._stopped.set()

    def look(self) -> None:
        """Called often by somebody else: a ping in flight for too long is a failure."""
        asked = self._asked
        if asked is not None and time.monotonic() - asked > UNANSWERED and not self._guardrail.tripped:
            self._guardrail.failed(f"a ping has been waiting for {UNANSWERED:.0f} s", counts=self._limit)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._asked = time.monotonic()
            try:
                self._ping()
            except DatabaseBusy:
                self._guardrail.answered()  # somebody holds a lock: it is there
            except TodokuError as error:
                self._guardrail.failed(str(error))
            else:
                self._guardrail.answered()
            self._asked = None
            self._stopped.wait(PING_EVERY)
