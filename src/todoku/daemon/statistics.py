"""`Job Stats - …`, every 30 seconds, in the words of the job system this line comes from."""

from __future__ import annotations

import threading
from collections.abc import Callable

from todoku.core.errors import TodokuError
from todoku.engine.observability.log import Log
from todoku.store.statistics import Counts


def job_stats(counts: Counts) -> str:
    """One line. What waits for its back-off is pending there, and failed means for good."""
    pending = counts.of("pending") + counts.of("failed")
    return (
        f"Job Stats - Pending: {pending}, Processing: {counts.of('sending')}, "
        f"Completed: {counts.of('succeeded')}, Failed: {counts.of('aborted')}"
    )


class StatisticsThread:
    """A thread that counts and logs; silent while the database is."""

    def __init__(self, counts: Callable[[], Counts], every: float) -> None:
        self._counts = counts
        self._every = every
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; the first line comes after one interval."""
        threading.Thread(target=self._run, name="todoku-stats", daemon=True).start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                Log().info(job_stats(self._counts()))
            except TodokuError:  # the guardrail tells about the database
                continue
