"""The connection of an event loop to a broker, and a time limit that holds even if a client library ignores it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

C = TypeVar("C")
"""The client library's type of a connection."""

CLOSING: Final = 2.0
"""Seconds that closing a connection may take."""


class SharedConnection(Generic[C]):
    """A connection that is opened when it is first needed, shared by all sends, and reopened when it was lost.

    `ending` receives the tasks that close connections.
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
        """Returns the connection. The first caller opens it; others wait for that."""
        async with self._lock:
            if self._connection is not None and self._is_lost(self._connection):
                self._close_later(self._connection)
                self._connection = None
            if self._connection is None:
                opened = await self._connect()
                if self._given_up:
                    self._close_later(opened)
                    raise ConnectionResetError("the connection was opened too late")
                self._connection = opened
            return self._connection

    def give_up(self) -> None:
        """Closes the connection after a failure. If it is being opened, it is closed as soon as it is open."""
        self._given_up = True
        if self._connection is not None:
            self._close_later(self._connection)
            self._connection = None

    def _close_later(self, connection: C) -> None:
        ending = asyncio.ensure_future(self._close_quietly(connection))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _close_quietly(self, connection: C) -> None:
        with suppress(Exception):  # the connection is not used any more, and the first error was reported
            await within(CLOSING, self._close(connection))


_abandoned: Final[set[asyncio.Task[Any]]] = set()


async def within(seconds: float, work: Coroutine[Any, Any, None], what: str = "it was not done") -> None:
    """Awaits `work`; raises TimeoutError after `seconds`, which says `what`.

    It runs as a task of its own and is cancelled without waiting for it: client libraries are known to lose a
    cancellation (`asyncio.wait_for` before Python 3.12 does), and then to run for ever.
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
        raise TimeoutError(f"{what} within {seconds:g} s")
    task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it
