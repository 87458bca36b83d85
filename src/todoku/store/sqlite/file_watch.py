"""Detects writes of other connections: reads `pragma data_version` every few milliseconds."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from todoku.store.sqlite.writer import connect

_SOONEST: Final = 0.002
_LONGEST: Final = 0.005
_BUSY: Final = 0.05
"""Seconds between two checks while the worker is busy: its own commits change the file all the time, and each check
takes the interpreter's lock from its event loop."""


class SqliteListener:
    """A thread that checks whether the file has changed. A check costs microseconds and holds no lock afterwards."""

    announces = False

    def __init__(self, path: str, notice: Callable[[], None], is_busy: Callable[[], bool], *, timeout: float) -> None:
        self._connection = connect(path, timeout=timeout)
        self._notice = notice
        self._is_busy = is_busy
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        version, wait = self._version(), _SOONEST
        self._notice()  # of what was committed after the worker's first look and before this watch began (MEND-3)
        while not self._closed.wait(_BUSY if self._is_busy() else wait):
            if (seen := self._version()) is not None and seen != version:
                version, wait = seen, _SOONEST
                self._notice()
            else:
                wait = min(wait * 1.5, _LONGEST)

    def _version(self) -> int | None:
        try:
            ((version,),) = self._connection.execute("pragma data_version").fetchall()
        except sqlite3.Error:  # a commit is in progress, or the file is gone: the worker's polling reports it
            return None
        return int(version)
