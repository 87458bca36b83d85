"""Time limits of the requests of one event loop, with one timer for all of them.

`asyncio.timeout` sets a timer for each request and cancels it again. Here a timer is set only when a limit ends earlier
than all others: requests with equal limits end in the order in which they began.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType


class TimeLimits:
    """Limits that run now, in the event loop that is running."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits: set[TimeLimit] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def within(self, seconds: float) -> TimeLimit:
        """Limits a `with` block to so many seconds. When they are over, raises TimeoutError where the block waits."""
        return TimeLimit(self, self._loop.time() + seconds)

    def add(self, limit: TimeLimit) -> None:
        """Watches a limit."""
        self._limits.add(limit)
        if limit.ends < self._rings_at:
            self._set_timer(limit.ends)

    def remove(self, limit: TimeLimit) -> None:
        """Watches it no more. The timer stays: it rings for nobody, and is then set for those that are left."""
        self._limits.discard(limit)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at, self._timer = at, self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        now = self._loop.time()
        for limit in [limit for limit in self._limits if limit.ends <= now]:
            self._limits.discard(limit)
            limit.end()
        if self._limits:
            self._set_timer(min(limit.ends for limit in self._limits))


class TimeLimit:
    """One block, once. As `asyncio.timeout`, it leaves a task that others have cancelled as well cancelled."""

    __slots__ = ("_all", "_cancelling", "_is_over", "_task", "ends")

    def __init__(self, all: TimeLimits, ends: float) -> None:
        self._all = all
        self.ends = ends
        self._is_over = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is for code that runs in a task")
        self._cancelling = task.cancelling()
        self._all.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.remove(self)
        if not self._is_over or self._task is None:
            return
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        """Interrupts the block."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
