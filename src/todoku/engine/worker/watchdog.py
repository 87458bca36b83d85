"""The watch: deadlines of threads, work that waits too long here, and a loop that does not turn. Never blocks."""

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
from todoku.engine.worker.worker_thread import OnFailure, thread

_EVERY: Final = 0.1
_BLOCKED: Final = 1.0
"""A loop that has not turned for so long is blocked, and whoever does it is named."""


class Watch:
    """A thread that looks at the others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pools: Sequence[Pool],
        *,
        stale: float,
        stuck: float,
        holder: Callable[[asyncio.Task[Any] | None], str | None],
        give_back: Callable[..., None],
        presses: Callable[[Claimed], bool],
        on_stuck: Callable[[], None] | None,
        on_failure: OnFailure,
    ) -> None:
        self._loop = loop
        self._pools = pools
        self._stale = stale
        self._stuck = stuck
        self._holder = holder
        self._give_back = give_back
        self._presses = presses
        self._on_stuck = on_stuck
        self._turned = self._asked = time.monotonic()
        self._waiting = False
        self._stopping = threading.Event()
        self._loop_thread = threading.get_ident()
        self._thread = thread("watch", self._run, on_failure)
        self.blocked: str | None = None
        """The destination whose handler blocks the event loop now."""

    def start(self) -> None:
        """Begin to watch. Called in the loop's own thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stopping.set()
        self._thread.join()

    def alive(self) -> bool:
        """Whether the loop has turned within the longest time an attempt may take: else the lease must end (H8)."""
        return time.monotonic() - self._turned < self._stuck

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY):
            now = time.monotonic()
            for pool in self._pools:
                pool.watch(now)
                if not pool.waiting():
                    continue
                # What takes a place at a limit stays: no more of it is claimed than the slots can start.
                self._give_back(pool.take(lambda claim: not self._presses(claim), before=now - PATIENCE))
                self._give_back(pool.take(before=now - self._stale))
            self._look_at_loop(now)

    def _look_at_loop(self, now: float) -> None:
        if not self._waiting and not self._loop.is_closed():
            self._waiting, self._asked = True, now
            self._loop.call_soon_threadsafe(self._turn)
        elif self.blocked is None and now - self._asked > _BLOCKED:
            self.blocked = self._name()
            Log(adapter=self.blocked).warning("LOOP_BLOCKED", seconds=round(now - self._asked, 1), where=self._where())
        if not self.alive() and self._on_stuck is not None:
            Log(adapter=self.blocked).error("LOOP_STUCK", seconds=round(now - self._turned, 1), where=self._where())
            self._on_stuck()

    def _turn(self) -> None:
        self._turned, self._waiting = time.monotonic(), False
        if self.blocked is not None:
            Log(adapter=self.blocked).warning("LOOP_FREE", seconds=round(self._turned - self._asked, 1))
            self.blocked = None

    def _name(self) -> str:
        return self._holder(asyncio.current_task(self._loop)) or "not a handler of todoku"

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return ""
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}:{last.lineno} {last.name}"
