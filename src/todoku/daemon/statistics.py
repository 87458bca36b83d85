"""Logs `Job Stats - …` at intervals, in the words of the job system that this line was taken from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from todoku.core.errors import TodokuError
from todoku.engine.observability.log import Log
from todoku.store.statistics import Counts

COUNTED_FOR_THE_LOG: Final = 10_000
"""Deliveries that the line counts one by one. A hundred thousand that only wait would cost the database half a percent
of a core, whether somebody reads the line or not."""


def format_job_stats(counts: Counts) -> str:
    """Formats the line. There, Pending includes deliveries that wait for a retry, and Failed means dead letters."""
    pending = counts.of("pending") + counts.of("failed")
    return (
        f"Job Stats - Pending: {pending}, Processing: {counts.of('sending')}, "
        f"Completed: {counts.of('succeeded')}, Failed: {counts.of('aborted')}"
    )


class StatisticsThread:
    """A thread that counts deliveries and logs the line; logs nothing while the database does not answer."""

    def __init__(self, counts: Callable[[], Counts], every: float) -> None:
        self._counts = counts
        self._every = every
        self._stopped = threading.Event()

    def start(self) -> None:
        """Starts the thread; the first line comes after one interval."""
        threading.Thread(target=self._run, name="todoku-stats", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                Log().info(format_job_stats(self._counts()))
            except TodokuError:  # the guardrail reports the database
                continue
