"""Start-up: the database migrated (or found migrated), waited for if it does not answer yet."""

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

_AGAIN_AFTER: Final = 0.5
_SAY_EVERY: Final = 10.0


class DatabaseOpened(msgspec.Struct, frozen=True):
    """The database is there and has our schema."""


class DatabaseRefused(msgspec.Struct, frozen=True):
    """It is there, and waiting would not help."""

    error: TodokuError


class Opening:
    """Tries until it works, in a thread, so that a signal is heard meanwhile. `waits_for` says why it is not open."""

    def __init__(self, prepare: Callable[[], None], *, waits_for_schema: bool, waits_for_server: bool) -> None:
        self._prepare = prepare
        self._patient: tuple[type[TodokuError], ...] = (DatabaseBusy,)
        self._patient += (SchemaError,) if waits_for_schema else ()
        self._patient += (DatabaseUnavailable,) if waits_for_server else ()
        self.waits_for: TodokuError | None = None

    def start(self, events: SimpleQueue[Any]) -> None:
        """Begin; the end is an event, Opened or Refused."""
        threading.Thread(target=self._run, args=(events,), name="todoku-opening", daemon=True).start()

    def _run(self, events: SimpleQueue[Any]) -> None:
        said = -math.inf
        while True:
            try:
                self._prepare()
            except self._patient as error:
                self.waits_for = error
                if time.monotonic() - said >= _SAY_EVERY:
                    said = time.monotonic()
                    Log(part="supervisor").warning("WAITING_FOR_DATABASE", error=str(error))
                time.sleep(_AGAIN_AFTER)
            except TodokuError as error:
                events.put(DatabaseRefused(error))
                return
            else:
                if self.waits_for is not None:
                    Log(part="supervisor").warning("DATABASE_THERE")
                self.waits_for = None
                events.put(DatabaseOpened())
                return
