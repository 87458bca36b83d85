"""The watchdog: a thread that checks deadlines, work that waits too long for a slot, and a blocked event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

from todoku.core.message import Claimed
from todoku.engine.observability.log import Log
from todoku.engine.worker.pace import PATIENCE
from todoku.engine.worker.pool import Pool
from todoku.engine.worker.worker_thread import OnFailure, create_thread

_INTERVAL: Final = 0.1
_BLOCKED_AFTER: Final = 1.0
"""Seconds without a turn after which the event loop counts as blocked, and the blocking handler is logged."""


class Watchdog:
    """A thread that checks the pools and the event loop. It never blocks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pools: Sequence[Pool],
        *,
        stale: float,
        stuck: float,
        holder: Callable[[asyncio.Task[Any] | None], str | None],
        give_back: Callable[..., None],
        is_limited: Callable[[Claimed], bool],
        on_stuck: Callable[[], None] | None,
        on_failure: OnFailure,
    ) -> None:
        self._loop = loop
        self._pools = pools
        self._stale = stale
        self._stuck = stuck
        self._holder = holder
        self._give_back = give_back
        self._is_limited = is_limited
        self._on_stuck = on_stuck
        self._turned_at = self._probed_at = time.monotonic()
        self._is_probe_pending = False
        self._stopping = threading.Event()
        self._loop_thread = threading.get_ident()
        self._thread = create_thread("watch", self._run, on_failure)
        self.blocked: str | None = None
        """The destination whose handler blocks the event loop now, or None."""

    def start(self) -> None:
        """Starts the thread. Called in the event loop's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        self._thread.join()

    def alive(self) -> bool:
        """Whether the event loop has turned within the longest time an attempt may take.

        If not, the heartbeat stops renewing, so that the lease ends (H8).
        """
        return time.monotonic() - self._turned_at < self._stuck

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL):
            now = time.monotonic()
            for pool in self._pools:
                pool.watch(now)
                if not pool.waiting():
                    continue
                # Limited work stays longer: the claimer takes no more of it than the slots can start.
                self._give_back(pool.take(lambda claim: not self._is_limited(claim), before=now - PATIENCE))
                self._give_back(pool.take(before=now - self._stale))
            self._check_loop(now)

    def _check_loop(self, now: float) -> None:
        if not self._is_probe_pending and not self._loop.is_closed():
            self._is_probe_pending, self._probed_at = True, now
            self._loop.call_soon_threadsafe(self._mark_turn)
        elif self.blocked is None and now - self._probed_at > _BLOCKED_AFTER:
            self.blocked = self._holder_name()
            Log(adapter=self.blocked).warning(
                "LOOP_BLOCKED", seconds=round(now - self._probed_at, 1), where=self._where()
            )
        if not self.alive() and self._on_stuck is not None:
            Log(adapter=self.blocked).error("LOOP_STUCK", seconds=round(now - self._turned_at, 1), where=self._where())
            self._on_stuck()

    def _mark_turn(self) -> None:
        self._turned_at, self._is_probe_pending = time.monotonic(), False
        if self.blocked is not None:
            Log(adapter=self.blocked).warning("LOOP_FREE", seconds=round(self._turned_at - self._probed_at, 1))
            self.blocked = None

    def _holder_name(self) -> str:
        return self._holder(asyncio.current_task(self._loop)) or "not a handler of todoku"

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return ""
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}:{last.lineno} {last.name}"
