"""The line to a broker: one connection for an event loop, and a time limit that holds whatever a client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

C = TypeVar("C")
"""What a broker's client calls its connection."""

CLOSING: Final = 2.0
"""Seconds a connection has to say goodbye."""


class Line(Generic[C]):
    """A connection that is made when it is first needed, by one for all, and made again when it was lost.

    `ending` is where connections are that say goodbye.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        is_lost: Callable[[C], bool],
        close: Callable[[C], Coroutine[Any, Any, None]],
        ending: set[asyncio.Future[None]],
    ) -> None:
        self._connect = connect
        self._is_lost = is_lost
        self._close = close
        self._connection: C | None = None
        self._lock = asyncio.Lock()
        self._given_up = False
        self._ending = ending

    async def connected(self) -> C:
        """The connection. Whoever comes first makes it; the others wait."""
        async with self._lock:
            if self._connection is not None and self._is_lost(self._connection):
                self._end(self._connection)
                self._connection = None
            if self._connection is None:
                made = await self._connect()
                if self._given_up:
                    self._end(made)
                    raise ConnectionResetError("this connection came too late")
                self._connection = made
            return self._connection

    def give_up(self) -> None:
        """Something failed on it, perhaps while connecting: nothing is sent through it any more."""
        self._given_up = True
        if self._connection is not None:
            self._end(self._connection)
            self._connection = None

    def _end(self, connection: C) -> None:
        ending = asyncio.ensure_future(self._closed(connection))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _closed(self, connection: C) -> None:
        with suppress(Exception):  # it is given up in any case, and why it was has been said
            await within(CLOSING, self._close(connection))


_abandoned: Final[set[asyncio.Task[Any]]] = set()


async def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do this, or raise TimeoutError when the time is over.

    The work is a task of its own, and who is cancelled is not waited for: client libraries are known to lose a
    cancellation (`asyncio.wait_for` before Python 3.12 does), and then to go on for ever.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        if not task.done():
            _abandoned.add(task)
            task.add_done_callback(_forget)
            task.cancel()
    if not task.done():
        raise TimeoutError(f"not done in {seconds:g} s")
    task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that nobody is told of it twice
