"""Threads for functions that an event loop waits for.

asyncio has such threads, too, but few, and shares them: a function of the application that blocks there would hold up
todoku's own reads and writes.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallThreads:
    """Threads of one kind, for one event loop.

    `most`: calls at once; None: the caller bounds them. `kept`: threads that stay when they have nothing to do. `tidy`:
    called in the thread before and after each call. A thread cannot be stopped: one whose call is not awaited any more
    goes on, and no longer counts.
    """

    def __init__(
        self, name: str, *, most: int | None = None, kept: int = 0, tidy: Sequence[Callable[[], object]] = ()
    ) -> None:
        self._name = name
        self._places = nullcontext() if most is None else asyncio.Semaphore(most)
        self._kept = kept
        self._tidy = tidy
        self._idle: list[_CallThread] = []
        self._closed = False

    async def run(
        self, call: Callable[[], T], seconds: float | None = None, check: Callable[[], None] = lambda: None
    ) -> T:
        """Calls the function in a thread, once there is a place for it. TimeoutError: it took longer than `seconds`.

        The time begins with the call, not with the wait for a place. `check`: called after that wait, it raises if the
        function must not be called any more.
        """
        async with self._places:
            check()
            ended = self.start(call)
            if seconds is None:
                return await ended
            async with asyncio.timeout(seconds):
                return await ended

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Calls the function in a thread, at once. The future is its end."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        thread = self._idle.pop() if self._idle else _CallThread(self._name)
        within = contextvars.copy_context()

        def work() -> None:
            value, error = within.run(_end_of, call, self._tidy)
            try:
                loop.call_soon_threadsafe(self._hand_back, thread, ended, value, error)
            except RuntimeError:  # the loop is closed: nobody waits
                thread.end()

        thread.give(work)
        return ended

    def _hand_back(
        self, thread: _CallThread, ended: asyncio.Future[Any], value: Any, error: BaseException | None
    ) -> None:
        if self._closed or len(self._idle) >= self._kept:
            thread.end()
        else:
            self._idle.append(thread)
        if ended.done():  # not awaited any more
            return
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def stop(self) -> None:
        """Ends the threads that have nothing to do; the others end after their calls."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()


class _CallThread:
    """One thread, which makes the calls that it is given, in order."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=f"todoku {name}", daemon=True).start()

    def give(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def end(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # while the thread waits, it holds nothing of the last call


def _end_of(call: Callable[[], Any], tidy: Sequence[Callable[[], object]]) -> tuple[Any, BaseException | None]:
    """Returns what the function returned, or what it raised."""
    try:
        for clean in tidy:
            clean()
        try:
            return call(), None
        finally:
            for clean in tidy:
                clean()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        # In the event loop the first would mean the end of a coroutine, the others would end the worker.
        raised = RuntimeError(f"it raised {error!r}")
        raised.__cause__ = error
        return None, raised
    except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
        return None, error
