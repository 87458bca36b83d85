"""The reader of a capture in one worker: takes it if no other worker reads it, and keeps a session open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

import psycopg

from todoku.capture.attendant import SlotTooLarge, check_guardrail
from todoku.capture.replication import StreamError, Wakeup
from todoku.capture.session import CaptureSession, SessionParts
from todoku.capture.source import SourceSession
from todoku.capture.start import Stopped
from todoku.capture.storing import FenceLost, StoreAway
from todoku.core.capture import Stop
from todoku.core.errors import CaptureError, DatabaseBusy, DatabaseUnavailable, InvalidSetting
from todoku.engine.observability.log import Log
from todoku.store.captures import CaptureRow

_LOOK: Final = 1.0
"""Seconds between two looks at a capture that another worker reads, or that is stopped."""

_INTERRUPT: Final = 0.1
_RETRY_STOPPED: Final = 10.0
_SHORTEST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


class Reader:
    """Reads one capture while a worker lives. Errors of the source, and of todoku's database, do not end it."""

    def __init__(self, name: str, parts: SessionParts, *, declare: Callable[[], object] | None = None) -> None:
        self._name = name
        self._parts = parts
        self._store = parts.store
        self._log = Log(capture=name)
        self._declare = declare
        self._wakeup = Wakeup()
        self._session: CaptureSession | None = None
        self._done = threading.Event()
        self._pause = _SHORTEST_PAUSE
        self._retry_at = 0.0
        self._seen: CaptureRow | None = None
        self.reports = 0
        """How often it recorded why it does not read."""

    def run(self, worker: Callable[[], UUID], stop: threading.Event) -> None:
        """Reads until `stop` is set. `worker` returns the id of the worker whose lease it reads under."""
        watcher = threading.Thread(target=self._watch, args=(stop,), name=f"todoku capture {self._name}", daemon=True)
        watcher.start()
        try:
            while not stop.is_set():
                try:
                    pause = self._turn(worker, stop)
                except (DatabaseUnavailable, DatabaseBusy) as error:
                    self._log.warning("CAPTURE_WAITS_FOR_DATABASE", error=str(error))
                    pause = self._longer_pause()
                stop.wait(pause)
        finally:
            self._done.set()
            self._release(worker())
            self._wakeup.close()

    @property
    def is_streaming(self) -> bool:
        """Whether a session has passed the comparison before its start."""
        session = self._session
        return session is not None and session.is_streaming

    def _watch(self, stop: threading.Event) -> None:
        """Ends the present wait when the worker is to end."""
        stop.wait()
        self._wakeup.wake()
        while not self._done.wait(_INTERRUPT):
            self._wakeup.wake()
            if (session := self._session) is not None:
                session.interrupt()

    def _turn(self, worker: Callable[[], UUID], stop: threading.Event) -> float:
        """Reads the capture if it may, until the session ends. Returns the seconds to wait before the next turn."""
        if self._declare is not None:
            self._declare()
            self._declare = None  # once: what an operator drops later stays so until the worker starts again
        row = self._store.get(self._name)
        if row is None:  # an operator has dropped it
            return _LOOK
        me = worker()
        if row.owned and row.owner != me:
            return _LOOK
        if not self._is_due(row):
            return _LOOK
        if (taken := self._store.take(self._name, me)) is None:
            return _LOOK
        self._seen = taken
        return self._read(taken, lambda: stop.is_set() or worker() != taken.owner)

    def _is_due(self, row: CaptureRow) -> bool:
        """Whether it is to be tried again: after a while, or at once if an operator has begun it anew."""
        if row.state != "stopped":
            return row.state != "away" or time.monotonic() >= self._retry_at
        if row.reason == "SLOT_DROPPED" or (row.reason == "DIVERGED" and self.reports):
            return False  # it cannot pass by itself
        return time.monotonic() >= self._retry_at

    def _read(self, row: CaptureRow, ends: Callable[[], bool]) -> float:
        session = self._session = CaptureSession(self._parts, row, self._wakeup, ends)
        try:
            session.run()
        except FenceLost:
            return 0.05
        except StoreAway as error:
            self._log.warning("CAPTURE_WAITS_FOR_DATABASE", error=str(error))
            return self._longer_pause()
        except SlotTooLarge as error:
            return self._drop_slot(row, error)
        except (Stopped, CaptureError, InvalidSetting, StreamError, psycopg.Error) as error:
            if ends():
                return 0.0
            if session.is_streaming:
                self._pause = _SHORTEST_PAUSE  # it was well: what comes now is a new failure
            return self._report(row, stop_of(error, row))
        except (DatabaseUnavailable, DatabaseBusy):
            raise
        except Exception as error:  # noqa: BLE001 - visible as its state; the worker has other work
            self._log.error("CAPTURE_FAILED", exc_info=True)
            why = (
                f"The reader failed ({type(error).__name__}): nothing was skipped, and it is tried again; see its log."
            )
            return self._report(row, Stop("BAD_STREAM", why))
        finally:
            self._session = None
        return 0.0

    def _report(self, row: CaptureRow, stop: Stop) -> float:
        """Records why the capture does not read, and returns when to try again."""
        known = self._store.get(row.name)
        # What an operator must act on stays visible although the source is away meanwhile.
        changed = not (stop.state == "away" and known is not None and known.state == "stopped") and (
            self._store.set_state(row.name, stop.state, reason=stop.reason, why=stop.why, fence=row.fence)
        )
        if changed and stop.state == "stopped":
            self._log.error("CAPTURE_STOPPED", reason=stop.reason, why=stop.why)
        elif changed:
            self._log.warning("CAPTURE_AWAY", reason=stop.reason, why=stop.why)
        self.reports += 1
        if stop.state == "stopped" and stop.reason != "SLOT_DROPPED":
            self._guard(row)
        pause = self._longer_pause() if stop.state == "away" else _RETRY_STOPPED
        self._retry_at = time.monotonic() + pause
        return min(pause, _LOOK)

    def _guard(self, row: CaptureRow) -> None:
        """Drops the slot of a stopped capture if it retains too much: no session measures it."""
        bound = self._parts.options.drop_slot_above
        if bound is None:
            return
        try:
            source = SourceSession(self._parts.url())
            try:
                check_guardrail(source.lag(row.slot), bound)
            finally:
                source.close()
        except SlotTooLarge as error:
            self._drop_slot(row, error)
        except (psycopg.Error, InvalidSetting) as error:
            self._log.warning("CAPTURE_NOT_MEASURED", error=type(error).__name__)

    def _drop_slot(self, row: CaptureRow, error: SlotTooLarge) -> float:
        """The guardrail: the disk of the source goes before the capture. Loudly: an operator must begin it anew."""
        try:
            source = SourceSession(self._parts.url())
            try:
                source.drop_slot(row.slot)
            finally:
                source.close()
        except psycopg.Error as failure:
            return self._report(row, stop_of(failure, row))
        why = (
            f"{error}: drop_slot_above dropped the slot {row.slot}, so that the source's disk does not fill; changes"
            f" are missing: read the tables anew by `todoku capture snapshot {row.name} --by … --why …`."
        )
        self._log.error("SLOT_DROPPED", slot=row.slot, retained=error.retained, bound=error.bound)
        return self._report(row, Stop("SLOT_DROPPED", why))

    def _longer_pause(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause

    def _release(self, worker: UUID) -> None:
        """Lets another worker take the capture at once."""
        seen = self._seen
        if seen is None or seen.owner != worker:
            return
        try:
            self._store.release(seen.fence)
        except (DatabaseUnavailable, DatabaseBusy) as error:  # the lease ends by itself
            self._log.warning("CAPTURE_NOT_RELEASED", error=str(error))


_CODES: Final = {
    "55006": "SLOT_BUSY",  # object_in_use
    "42501": "NO_RIGHTS",
    "28000": "NO_RIGHTS",
    "28P01": "NO_RIGHTS",
    "53400": "NO_SLOTS_LEFT",  # configuration_limit_exceeded
}
_PASSING_CLASSES: Final = ("08", "53", "57", "40", "55")
"""Classes of errors that pass: the connection, resources, an operator's intervention, a conflict, a lock that another
session has. Whatever the slot has to do with it is found by the comparison before the next start."""


def stop_of(error: Exception, row: CaptureRow) -> Stop:
    """Returns what an error means for a capture."""
    if isinstance(error, Stopped):
        return error.stop
    if isinstance(error, CaptureError):
        return Stop(error.reason, str(error))  # type: ignore[arg-type]  # one of Reason
    if isinstance(error, InvalidSetting):
        return Stop("NO_RIGHTS", f"The URL of the source cannot be read: {error}")
    code = error.code if isinstance(error, StreamError) else getattr(error, "sqlstate", None) or ""
    text = " ".join(str(error).split())
    if (reason := _CODES.get(code)) is not None:
        return Stop(reason, _HINTS[reason].format(text=text, slot=row.slot))  # type: ignore[arg-type]  # as above
    if not code and "wal_level" not in text and _is_refused_login(text):
        return Stop("NO_RIGHTS", _HINTS["NO_RIGHTS"].format(text=text, slot=row.slot))
    if not code or code.startswith(_PASSING_CLASSES):
        return Stop("SOURCE_AWAY", f"The source does not answer ({text}): it is tried again.")
    return Stop("BAD_STREAM", f"The source refused with {code} ({text}): correct it there; it is tried again.")


def _is_refused_login(text: str) -> bool:
    """libpq reports refusals at the start of a connection without their code."""
    return any(part in text for part in ("password authentication failed", "no pg_hba.conf entry", "must be superuser"))


_HINTS: Final = {
    "SLOT_BUSY": "Another reader has the slot {slot} ({text}): the capture waits until it ends.",
    "NO_RIGHTS": "The source refused ({text}): give the role what it needs; it is tried again.",
    "NO_SLOTS_LEFT": "The source has no room ({text}): raise max_replication_slots or max_wal_senders there.",
}
