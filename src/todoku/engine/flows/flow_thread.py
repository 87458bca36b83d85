"""The thread of a plain workflow. Each call of its context is handed over to the event loop, in which its run lives.

The thread waits there, blocked, until the step has its result. If the run ends instead, because it parks, is lost or is
cancelled, the call raises RunStopped in the thread, which unwinds and ends. A thread that does not end, because the
function blocks outside of its steps, is abandoned when its time is over, as that of any plain handler: it goes on, but
each further call of its context raises RunStopped before anything happens.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from todoku.core.errors import InvalidMessage
from todoku.engine.flows.run import Run, RunStopped
from todoku.engine.observability.log import Log
from todoku.engine.worker.call_threads import CallThreads

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds that a thread has to end when the worker, and not the run itself, ends the attempt."""


class FlowThread:
    """The thread in which the function of one attempt runs. Its methods belong to the event loop, but for `call`.

    `tell`: learns which thread it is, and None when the function has ended.
    """

    def __init__(self, run: Run, threads: CallThreads, tell: Callable[[int | None], None]) -> None:
        self._run = run
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._ident: int | None = None
        self._tell = tell
        self._began = 0.0
        self._ended: asyncio.Future[Any] | None = None
        self._asked: Future[Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        self._lock = threading.Lock()
        """Held where the thread asks and where the event loop stops it: no call may be left without an answer."""

    async def run(self, function: Callable[[], T]) -> T:
        """Calls the function in the thread, and waits for its end. Cancelled, it stops the thread."""
        self._began = time.monotonic()
        ended = self._ended = self._threads.start(partial(self._enter, function))
        ended.add_done_callback(lambda end: end.exception())  # that of a thread which was stopped is of no interest
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._stop()
            # A run that stops itself keeps its slot until its thread has ended, at most until its time is over.
            await asyncio.wait((ended,), timeout=None if self._run.stopped.done() else _GRACE)
            raise

    def _enter(self, function: Callable[[], T]) -> T:
        self._ident = threading.get_ident()
        self._tell(self._ident)
        try:
            return function()
        finally:
            self._tell(None)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the event loop, and blocks this thread until it ends. RunStopped: the attempt is over."""
        if threading.get_ident() != self._ident:
            raise InvalidMessage(
                "ctx was called outside of the thread of its workflow",
                hint="call steps one after the other; what runs at the same time are children: ctx.gather(job.call(…))",
            )
        answer: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise RunStopped
            self._asked = answer
            self._loop.call_soon_threadsafe(self._begin, answer, make)
        try:
            return answer.result()
        finally:
            del answer  # what it raised refers to this frame

    def _begin(self, answer: Future[T], make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        if not answer.done():
            self._task = self._loop.create_task(make())
            self._task.add_done_callback(partial(_answer, answer))

    def _stop(self) -> None:
        """Lets the call under way, and each that follows, raise RunStopped."""
        with self._lock:
            self._stopped = True
            asked = self._asked
        if self._task is not None and not self._task.done():
            self._task.cancel()  # its end is the answer
        elif asked is not None and not asked.done():
            asked.set_exception(RunStopped())

    def leave(self) -> None:
        """The attempt is over. A thread that has not ended is abandoned."""
        self._stop()
        if self._ended is not None and not self._ended.done():
            claim = self._run.claim
            Log(adapter=claim.destination, message_id=claim.message_id).warning(
                "HANDLER_ABANDONED", why="workflow", seconds=round(time.monotonic() - self._began, 3)
            )


def _answer(answer: Future[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        answer.set_exception(RunStopped())
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
