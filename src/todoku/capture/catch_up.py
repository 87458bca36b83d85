"""Reads a capture until everything that was committed before the call is stored: for tests and scripts."""

from __future__ import annotations

import threading
import time
from typing import Final
from uuid import UUID, uuid4

import psycopg

from todoku.capture.reader import Reader
from todoku.capture.session import SessionParts
from todoku.capture.source import SourceSession
from todoku.core.errors import CaptureError
from todoku.store.captures import CaptureRow
from todoku.store.leases import LeaseStore

_LEASE: Final = 60.0
_LOOK: Final = 0.2


def catch_up(name: str, parts: SessionParts, leases: LeaseStore, timeout: float) -> CaptureRow:
    """Reads as a worker with a lease of its own, or lets the worker read that has the capture already.

    CaptureError: it is stopped, or it has not caught up in this time.
    """
    target, deadline = _position(parts), time.monotonic() + timeout
    worker, stop, stored = uuid4(), threading.Event(), threading.Event()
    parts = parts.woken_by(stored.set)
    leases.register(worker, name=f"catch up {name}", lease=_LEASE)
    reader = Reader(name, parts)
    thread = threading.Thread(target=reader.run, args=(lambda: worker, stop), name=f"todoku catch up {name}")
    thread.start()
    renew_at = time.monotonic() + _LEASE / 3
    try:
        while (row := parts.store.get(name)) is not None and not (
            _is_there(row, target, parts) and (reader.is_streaming or _is_read_elsewhere(row, worker))
        ):
            if row.state == "stopped" and (
                reader.reports or row.reason == "SLOT_DROPPED" or (row.owned and row.owner != worker)
            ):
                raise CaptureError(f"the capture {name!r} is stopped", hint=row.why or "", reason=row.reason or "")
            if time.monotonic() > deadline or not thread.is_alive():
                raise CaptureError(
                    f"the capture {name!r} has not caught up after {timeout:g} seconds: it is {row.state}",
                    hint=row.why or "give it more time", reason=row.reason or "SOURCE_AWAY",
                )  # fmt: skip
            if time.monotonic() > renew_at:
                leases.renew(worker, lease=_LEASE)
                renew_at = time.monotonic() + _LEASE / 3
            stored.wait(_LOOK)
            stored.clear()
    finally:
        stop.set()
        thread.join()
        leases.end(worker, lost=False)
    if row is None:
        raise CaptureError(f"the capture {name!r} was dropped", hint="box.migrate() declares it again")
    return row


def _position(parts: SessionParts) -> int:
    try:
        source = SourceSession(parts.url())
    except psycopg.OperationalError as error:
        raise CaptureError(
            f"the source does not answer: {error}", hint="is it running, and is the URL right?", reason="SOURCE_AWAY"
        ) from error
    try:
        return source.position()
    finally:
        source.close()


def _is_read_elsewhere(row: CaptureRow, worker: UUID) -> bool:
    return row.owned and row.owner != worker and row.state in ("streaming", "snapshot")


def _is_there(row: CaptureRow, target: int, parts: SessionParts) -> bool:
    declared = {rule.table for rule in parts.rules}
    return row.lsn >= target and all(table.phase == "done" for table in row.tables if table.table in declared)
