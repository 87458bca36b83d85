"""Waiting for NOTIFY, on a connection of its own. A notice that is missed costs time, never a message."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Final

import psycopg

CHANNEL: Final = "todoku"
_LOOK: Final = 0.5
_LONGEST: Final = 5.0
_PATIENCE: Final = 2.0


class PostgresListener:
    """A thread that listens. Behind PgBouncer in transaction mode it hears nothing, and polling is enough."""

    announces = True

    def __init__(self, url: str, notice: Callable[[], None]) -> None:
        self._url = url
        self._notice = notice
        self._closed = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku listener", daemon=True)
        self._thread.start()
        self._listening.wait(_PATIENCE)  # what is published from here on is heard, if the server answers

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.1
        while not self._closed.is_set():
            try:
                with psycopg.connect(
                    self._url, autocommit=True, connect_timeout=10, application_name="todoku listener"
                ) as connection:
                    connection.execute(f"listen {CHANNEL}")
                    pause = 0.1
                    self._listening.set()
                    self._wait_for_notices(connection)
            except psycopg.Error:  # the server is gone; the heartbeat says so, and polling goes on
                self._closed.wait(pause)
                pause = min(pause * 2, _LONGEST)

    def _wait_for_notices(self, connection: psycopg.Connection[Any]) -> None:
        # psycopg's own wait would wake this thread ten times a second, and select() takes no descriptor above 1023.
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=0):
                self._notice()
            wait([connection.fileno()], timeout=_LOOK)
