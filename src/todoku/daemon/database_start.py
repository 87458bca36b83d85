"""Start-up of the database: migrates it or checks its schema, and waits for it if it does not answer yet."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, SchemaError, TodokuError
from todoku.engine.observability.log import Log

_RETRY_AFTER: Final = 0.5
_LOG_EVERY: Final = 10.0


class DatabaseOpened(msgspec.Struct, frozen=True):
    """The database answers and has the schema that this version needs."""


class DatabaseRefused(msgspec.Struct, frozen=True):
    """The database cannot be used, and waiting would not help."""

    error: TodokuError


class Opening:
    """Tries in a thread until the database can be used. `waits_for` is the last error, None if there is none.

    A thread, so that the supervisor can handle signals meanwhile.
    """

    def __init__(self, prepare: Callable[[], None], *, waits_for_schema: bool, waits_for_server: bool) -> None:
        self._prepare = prepare
        self._retried: tuple[type[TodokuError], ...] = (DatabaseBusy,)
        self._retried += (SchemaError,) if waits_for_schema else ()
        self._retried += (DatabaseUnavailable,) if waits_for_server else ()
        self.waits_for: TodokuError | None = None

    def start(self, events: SimpleQueue[Any]) -> None:
        """Starts the thread, which puts one DatabaseOpened or DatabaseRefused into `events`."""
        threading.Thread(target=self._run, args=(events,), name="todoku-opening", daemon=True).start()

    def _run(self, events: SimpleQueue[Any]) -> None:
        logged_at = -math.inf
        while True:
            try:
                self._prepare()
            except self._retried as error:
                self.waits_for = error
                if time.monotonic() - logged_at >= _LOG_EVERY:
                    logged_at = time.monotonic()
                    Log(part="supervisor").warning("WAITING_FOR_DATABASE", error=str(error))
                time.sleep(_RETRY_AFTER)
            except TodokuError as error:
                events.put(DatabaseRefused(error))
                return
            else:
                if self.waits_for is not None:
                    Log(part="supervisor").warning("DATABASE_THERE")
                self.waits_for = None
                events.put(DatabaseOpened())
                return
