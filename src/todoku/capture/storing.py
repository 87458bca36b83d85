"""The storing thread of a session: each unit is one commit of todoku's database that also moves the position (R16)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, assert_never

import msgspec

from todoku.capture.drafts import CapturedDrafts, headers_text
from todoku.capture.handover import Changes, Handover, Stage, StagedEnd, Sweep, Unit
from todoku.capture.tables import CapturedTable, StreamedTable
from todoku.core.capture import CapturedChange
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.engine.observability.telemetry import Telemetry
from todoku.store.capture_portions import Fence, Portion, Stored, TableProgress
from todoku.store.captures import CaptureStore

SWEPT: Final = 1_000
"""Keys that one sweep publishes as deletes."""

_PATIENCE: Final = 5.0
"""Seconds after which a session ends because todoku's database is away. While the stream is open, the source would wait
for its confirmations, and could not shut down."""

_LONGEST_PAUSE: Final = 1.0


class FenceLost(Exception):
    """Another worker reads, or an operator has changed the capture."""


class StoreAway(Exception):
    """todoku's database does not answer."""


class Storer:
    """Stores what the reading thread hands over. `stored` is the position that may be confirmed to the source."""

    def __init__(
        self, store: CaptureStore, fence: Fence, handover: Handover, *, start: int, drafts: CapturedDrafts,
        sweeps: Callable[[str], tuple[CapturedTable, StreamedTable]], on_stored: Callable[[TableProgress | None], None],
        notify: bool, telemetry: Telemetry,
    ) -> None:  # fmt: skip
        self._store = store
        self._fence = fence
        self._handover = handover
        self.stored = start
        self._drafts = drafts
        self._sweeps = sweeps
        self._on_stored = on_stored
        self._notify = notify
        self._telemetry = telemetry
        self._ended = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"todoku capture {fence.name}: store", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the commit that is under way. The source sends again what waited."""
        self._ended.set()
        self._handover.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if (unit := self._handover.take(1.0)) is not None:
                    self._store_unit(unit)
        except Exception as error:  # noqa: BLE001 - the reading thread raises it
            self.failure = error
            self._on_stored(None)

    def _store_unit(self, unit: Unit) -> None:
        match unit:
            case Changes():
                self._commit(_portion(unit))
            case Stage():
                self._stage(unit)
            case StagedEnd():
                self._commit(_portion(unit.rest), is_staged=True)
            case Sweep():
                self._commit(self._sweep(unit))
            case _:
                assert_never(unit)

    def _commit(self, portion: Portion, *, is_staged: bool = False) -> None:
        store = self._store.store_staged if is_staged else self._store.store

        def commit() -> Stored:
            return store(self._fence, portion, notify=self._notify)

        if self._repeat(commit) == "lost":
            raise FenceLost
        self.stored = portion.lsn
        if portion.drafts:
            self._telemetry.captured(portion.drafts)
        self._on_stored(portion.page)

    def _stage(self, unit: Stage) -> None:
        def stage() -> Stored:
            keys = unit.keys
            held = self._store.stage(
                self._fence, unit.number, unit.drafts, keys.added, keys.removed, truncated=tuple(keys.truncated)
            )
            return "stored" if held else "lost"

        if self._repeat(stage) == "lost":
            raise FenceLost
        self._telemetry.captured(unit.drafts)
        self._on_stored(None)  # there is room again

    def _repeat(self, attempt: Callable[[], Stored]) -> Stored:
        """Tries until the database has answered. A commit whose reply was lost is found stored (R16)."""
        pause, since = 0.05, time.monotonic()
        while True:
            try:
                return attempt()
            except DatabaseBusy:
                if self._ended.wait(pause):
                    raise
            except DatabaseUnavailable as error:
                if time.monotonic() - since > _PATIENCE or self._ended.wait(pause):
                    raise StoreAway(str(error)) from error
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _sweep(self, unit: Sweep) -> Portion:
        """Makes the deletes of rows that neither the snapshot nor the stream has seen (R20)."""
        table, streamed = self._sweeps(unit.table)
        state = table.state
        keys = self._store.stale_keys(self._fence.name, unit.table, state.generation, SWEPT)
        headers = headers_text(self._fence.name, unit.lsn, state.generation)
        drafts = [
            self._drafts.draft(change, headers, streamed.encoder)
            for key in keys
            for change in _deletes(table, streamed, key)
        ]
        page = TableProgress(
            table=unit.table, position=None, copied=table.copied, phase="sweeping" if len(keys) == SWEPT else "done"
        )
        return Portion(
            lsn=unit.lsn, xid=unit.xid, drafts=drafts, removed=[(unit.table, key) for key in keys], page=page
        )


def _portion(unit: Changes) -> Portion:
    keys = unit.keys
    return Portion(
        lsn=unit.lsn, xid=unit.xid, committed_at=unit.committed_at, drafts=unit.drafts, added=keys.added,
        removed=keys.removed, truncated=tuple(keys.truncated), page=unit.page,
    )  # fmt: skip


def _deletes(table: CapturedTable, streamed: StreamedTable, name: str) -> list[CapturedChange]:
    """The message of a row of which only its name is known; None of its values, if that is a hash."""
    columns = streamed.names.columns
    values: list[str | None] = [name]
    if len(columns) > 1 and not name.startswith("sha256:"):
        values = msgspec.json.decode(name, type=list[str | None])
    if len(values) == len(columns) and not name.startswith("sha256:"):
        return streamed.name_encoder.delete(streamed.row(dict(zip(columns, values, strict=True))), full=False)
    (change,) = streamed.encoder.truncate()
    payload = msgspec.json.decode(change.payload) | {"op": "delete"}
    topic = table.rule.topic_of("delete")
    return [CapturedChange("delete", topic, name, msgspec.json.encode(payload).decode())]
