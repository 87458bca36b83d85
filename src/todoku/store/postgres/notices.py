"""Waits for NOTIFY on a separate connection. A missed notice delays a message, and never loses it."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

WORK: Final = "todoku"
"""The channel on which publishers tell idle workers of new work, callers tell workers what they wait for, and
operators tell them of changed limits."""

ENDS: Final = "todoku_ended"
"""The channel on which workers tell callers of other processes the ids of messages that ended."""

AWAITED: Final = "awaited "
"""Before the id of a message that a caller waits for."""

LIMITED: Final = "limits"
"""A pause or a limit was changed. Any other payload means new work."""

_CHECK_EVERY: Final = 0.5
_RECONNECT_MAX: Final = 5.0
_START_TIMEOUT: Final = 2.0


class PostgresListener:
    """A thread that listens for notices. Behind PgBouncer in transaction mode there are none, and workers poll."""

    announces = True

    def __init__(self, url: str, channel: str, notice: Callable[[str], None]) -> None:
        self._url = url
        self._channel = channel
        self._notice = notice
        self._closed = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku listener", daemon=True)
        self._thread.start()
        self._listening.wait(_START_TIMEOUT)  # from now on every publish is noticed, if the server answers

    def close(self) -> None:
        """Stops listening."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.1
        while not self._closed.is_set():
            try:
                with psycopg.connect(
                    self._url, autocommit=True, connect_timeout=10, application_name="todoku listener"
                ) as connection:
                    connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
                    pause = 0.1
                    self._listening.set()
                    self._wait_for_notices(connection)
            except psycopg.Error:  # the server is gone; the heartbeat reports it, and workers poll
                self._closed.wait(pause)
                pause = min(pause * 2, _RECONNECT_MAX)

    def _wait_for_notices(self, connection: psycopg.Connection[Any]) -> None:
        for early in connection.notifies(timeout=0):  # those that came with the answer to LISTEN
            self._notice(early.payload)
        # psycopg's own wait wakes this thread ten times a second, and select() supports no descriptor above 1023. Its
        # `notifies` reads a notice in more than twice the time, and the worker's next message waits for that.
        pgconn = connection.pgconn
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while not self._closed.is_set():
                pgconn.consume_input()
                while (notify := pgconn.notifies()) is not None:
                    self._notice(notify.extra.decode())
                selector.select(_CHECK_EVERY)
