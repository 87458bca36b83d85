"""One session of a reader: from the comparison before the start to the end of the stream.

Three threads: the caller's reads the stream and never waits for todoku's database; one stores; one attends to the
source: heartbeats, measurements, pages of snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from todoku.capture.attendant import Attendant
from todoku.capture.changes import Assembler
from todoku.capture.drafts import CapturedDrafts
from todoku.capture.evidence import Evidence
from todoku.capture.handover import Handover
from todoku.capture.pages import Pages
from todoku.capture.replication import Stream, Wakeup
from todoku.capture.snapshot import Snapshots
from todoku.capture.source import SourceSession
from todoku.capture.start import Started, examine, prepare
from todoku.capture.storing import Storer
from todoku.core.capture import TableRule
from todoku.core.pgoutput import KeepAlive, read_frame
from todoku.engine.observability.telemetry import Telemetry
from todoku.store.capture_portions import TableProgress
from todoku.store.captures import CaptureRow, CaptureStore

_FRAMES: Final = 4_096
_STATUS_INTERVAL: Final = 10.0


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a capture is read. Tests make numbers smaller."""

    drop_slot_above: int | None = None
    heartbeat: float = 10.0
    measure: float = 5.0
    page_rows: int = 2_000
    stage_rows: int = 10_000


class SessionParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session needs of its App."""

    url: Callable[[], str]
    rules: tuple[TableRule, ...]
    store: CaptureStore
    drafts: CapturedDrafts
    telemetry: Telemetry
    notify: bool
    on_stored: Callable[[], None]
    options: SessionOptions

    def woken_by(self, also: Callable[[], None]) -> SessionParts:
        """Returns these parts with one more call after each commit."""
        before = self.on_stored

        def both() -> None:
            before()
            also()

        return msgspec.structs.replace(self, on_stored=both)


class CaptureSession:
    """Reads a capture that this worker has taken. `run` returns when `ends()`, and raises why it had to end before."""

    def __init__(self, parts: SessionParts, row: CaptureRow, wakeup: Wakeup, ends: Callable[[], bool]) -> None:
        self._parts = parts
        self._row = row
        self._fence = row.fence
        self._wakeup = wakeup
        self._ends = ends
        self._source: SourceSession | None = None
        self._confirmed = 0
        self._received = 0
        self._status_at = 0.0
        self.is_streaming = False
        """Whether the comparison before the start was passed, and the stream has begun."""

    def run(self) -> None:
        """Reads until it has to end. Raises what `Reader` knows: errors of the source, of the store, and Stopped."""
        url = self._parts.url()
        source = self._source = SourceSession(url)
        try:
            found = examine(self._row, self._parts.rules, source)
            stream = Stream(url, self._wakeup)
            try:
                started = prepare(self._row, self._parts.store, found, source, stream)
                self._read(started, source, stream)
            finally:
                stream.close()
        finally:
            source.close()

    def interrupt(self) -> None:
        """Cancels what a start waits for at the source. Any thread may call it."""
        if not self.is_streaming and self._source is not None:
            self._source.cancel()

    def _read(self, started: Started, source: SourceSession, stream: Stream) -> None:
        parts = self._parts
        tables, pages, handover = started.tables, Pages(), Handover()
        options = parts.options
        snapshots = Snapshots(self._row.name, source, pages, tables.values(), page_rows=options.page_rows)

        def on_stored(page: TableProgress | None) -> None:
            if page is not None:
                snapshots.stored(page)
                attendant.wake()
            self._wakeup.wake()
            parts.on_stored()

        storer = Storer(
            parts.store, self._fence, handover, start=started.lsn, drafts=parts.drafts, sweeps=snapshots.swept,
            on_stored=on_stored, notify=parts.notify, telemetry=parts.telemetry,
        )  # fmt: skip
        attendant = Attendant(
            parts, self._row, source, pages=pages, snapshots=snapshots, started=started,
            on_failure=self._wakeup.wake,
        )  # fmt: skip
        assembler = Assembler(
            self._row.name, started.generation, started.lsn, tables=tables, drafts=parts.drafts, pages=pages,
            emit=handover.put, evidence=started.evidence, stage_rows=options.stage_rows,
        )  # fmt: skip
        stream.start(self._row.slot, self._row.publication, 0)
        self._confirmed = started.lsn
        self.is_streaming = True
        storer.start()
        attendant.start()
        try:
            self._loop(stream, assembler, handover, storer, attendant, started)
        finally:
            attendant.stop()
            storer.stop()
        self._confirm(stream, storer, started.evidence)

    def _loop(
        self, stream: Stream, assembler: Assembler, handover: Handover, storer: Storer, attendant: Attendant,
        started: Started,
    ) -> None:  # fmt: skip
        timeout = started.server.sender_timeout
        interval = min(_STATUS_INTERVAL, timeout / 4) if timeout else _STATUS_INTERVAL
        more = False
        self._status_at = time.monotonic()
        while not self._ends():
            reads = handover.has_room
            wait = 0.0 if more and reads else self._status_at + interval - time.monotonic()
            stream.wait(wait, reading=reads)
            for failure in (storer.failure, attendant.failure):
                if failure is not None:
                    raise failure
            wants_reply = False
            if reads:
                frames = stream.frames(_FRAMES)
                more = len(frames) == _FRAMES
                wants_reply = self._take(frames, assembler)
            overdue = time.monotonic() >= self._status_at + interval
            if wants_reply or overdue or storer.stored > self._confirmed:
                self._confirm(stream, storer, started.evidence)

    def _take(self, frames: list[bytes], assembler: Assembler) -> bool:
        """Takes frames; returns whether the server wants a status."""
        wants_reply = False
        for raw in frames:
            frame = read_frame(raw)
            if isinstance(frame, KeepAlive):
                # Its position is not stored: the heartbeats move the slot of a quiet source, and are sent again.
                self._received = max(self._received, frame.end)
                wants_reply = wants_reply or frame.reply
            else:
                assembler.take(frame.payload)
        return wants_reply

    def _confirm(self, stream: Stream, storer: Storer, evidence: Evidence) -> None:
        """Confirms what is stored, and that this reader is alive. The position 0 confirms nothing."""
        lsn = 0 if evidence.is_missing else storer.stored
        stream.confirm(lsn, self._received)
        self._confirmed = max(self._confirmed, lsn)
        self._status_at = time.monotonic()
