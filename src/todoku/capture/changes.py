"""Turns the messages of the stream into units to store: whole source transactions, pages of snapshots, positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from todoku.capture.drafts import CapturedDrafts, headers_text
from todoku.capture.evidence import A_MARK, Evidence
from todoku.capture.handover import Changes, Keys, Stage, StagedEnd, Sweep, Unit
from todoku.capture.pages import PREFIX, Pages, ReadPage
from todoku.capture.tables import CapturedTable, StreamedTable
from todoku.core.capture import CapturedChange
from todoku.core.errors import CaptureError
from todoku.core.message import Draft
from todoku.core.pgoutput import Begin, Commit, Delete, Insert, Mark, Other, Relation, Truncate, Update, decode
from todoku.store.capture_portions import TableProgress

NOT_SKIPPED: Final = "nothing was skipped: the reader starts again at the stored position"
STAGE_ROWS: Final = 10_000
STAGE_BYTES: Final = 16 << 20
"""From here on a source transaction is staged in parts (R19)."""


class Assembler:
    """Follows the stream of one session. Used by the reading thread only.

    `start`: the stored position. The server may send transactions again that end at or before it: they are skipped.
    """

    def __init__(
        self, capture: str, generation: int, start: int, *, tables: Mapping[str, CapturedTable],
        drafts: CapturedDrafts, pages: Pages, emit: Callable[[Unit], None], evidence: Evidence,
        stage_rows: int = STAGE_ROWS, stage_bytes: int = STAGE_BYTES,
    ) -> None:  # fmt: skip
        self._capture = capture
        self._generation = generation
        self._start = start
        self._tables = tables
        self._make = drafts.draft
        self._pages = pages
        self._emit = emit
        self._evidence = evidence
        self._stage_rows = stage_rows
        self._stage_bytes = stage_bytes
        self._streamed: dict[int, StreamedTable | None] = {}
        self._begin: Begin | None = None
        self._skips = False
        self._is_marked = False
        self._headers = ""
        self._drafts: list[Draft] = []
        self._size = 0
        self._keys = Keys()
        self._parts = 0
        self._marks: list[Mark] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Begin: self._on_begin, Commit: self._on_commit, Relation: self._on_relation, Insert: self._on_insert,
            Update: self._on_update, Delete: self._on_delete, Truncate: self._on_truncate, Mark: self._on_mark,
            Other: _nothing,
        }  # fmt: skip

    def take(self, payload: bytes) -> None:
        """Takes one message of the stream. CaptureError: it cannot be read, or a table has changed its key."""
        message = decode(payload)
        self._handlers[type(message)](message)

    # ------------------------------------------------------------------------------------- transactions

    def _on_begin(self, message: Begin) -> None:
        self._begin = message
        self._is_marked = False
        self._skips = message.lsn < self._start  # the stored position is behind its commit
        self._headers = headers_text(
            self._capture, message.lsn, self._generation, xid=message.xid, committed_at=message.committed_at
        )

    def _on_commit(self, message: Commit) -> None:
        begin, self._begin = self._begin, None
        marks, self._marks = self._marks, []
        if begin is None:
            raise CaptureError("the server sent the end of a transaction that has no beginning", hint=NOT_SKIPPED)
        if self._skips:
            if self._is_marked:
                self._evidence.take(message.end, A_MARK)
            else:
                self._evidence.take(message.end, begin.xid, begin.committed_at)
            return
        rest = Changes(
            lsn=message.end, xid=A_MARK if self._is_marked else begin.xid, drafts=self._drafts, keys=self._keys,
            committed_at=None if self._is_marked else begin.committed_at, size=self._size,
        )  # fmt: skip
        parts, self._drafts, self._keys, self._size, self._parts = self._parts, [], Keys(), 0, 0
        if parts:
            self._hand(StagedEnd(rest=rest, parts=parts))
        elif marks and not rest.drafts:  # a mark of ours is a transaction of its own
            for mark in marks:
                self._on_arrival(mark, message.end)
        else:
            self._hand(rest)

    def _hand(self, unit: Unit) -> None:
        self._evidence.require()
        self._emit(unit)

    def _add(self, streamed: StreamedTable, changes: list[CapturedChange]) -> None:
        for change in changes:
            self._drafts.append(self._make(change, self._headers, streamed.encoder))
            self._size += len(change.payload)
        if len(self._drafts) >= self._stage_rows or self._size >= self._stage_bytes:
            self._hand(Stage(number=self._parts, drafts=self._drafts, keys=self._keys, size=self._size))
            self._parts += 1
            self._drafts, self._keys, self._size = [], Keys(), 0

    # --------------------------------------------------------------------------------------------- rows

    def _on_relation(self, message: Relation) -> None:
        table = self._tables.get(f"{message.schema}.{message.table}")
        self._streamed[message.oid] = None if table is None else StreamedTable(message, table)

    def _of(self, relation: int) -> StreamedTable | None:
        """The table of a change; None: a transaction that is stored already, or a table that is not captured."""
        if self._skips:
            return None
        try:
            return self._streamed[relation]
        except KeyError:
            what = f"the server sent a change of a table that it has not described (oid {relation})"
            raise CaptureError(what, hint=NOT_SKIPPED) from None

    def _on_insert(self, message: Insert) -> None:
        if (streamed := self._of(message.relation)) is None:
            return
        if streamed.table.keeps_keys:
            self._there(streamed, streamed.names.of(message.new))
        self._add(streamed, streamed.encoder.insert(message.new))

    def _on_update(self, message: Update) -> None:
        if (streamed := self._of(message.relation)) is None:
            return
        table = streamed.table
        if table.keeps_keys:
            new = streamed.names.of(message.new, message.old)
            old = new if message.old is None else streamed.names.of(message.old)
            if old != new:
                self._gone(streamed, old)
            if old != new or table.is_recording:  # otherwise its key is known since the snapshot or the insert
                self._there(streamed, new)
        self._add(streamed, streamed.encoder.update(message.old, message.full, message.new))

    def _on_delete(self, message: Delete) -> None:
        if (streamed := self._of(message.relation)) is None:
            return
        if streamed.table.keeps_keys:
            self._gone(streamed, streamed.names.of(message.old))
        self._add(streamed, streamed.encoder.delete(message.old, message.full))

    def _on_truncate(self, message: Truncate) -> None:
        for relation in message.relations:
            if (streamed := self._of(relation)) is None:
                continue
            if streamed.table.keeps_keys:
                self._keys.truncate(streamed.name)
            if streamed.table.is_recording and self._begin is not None:
                streamed.table.record_truncate(self._begin.xid)
            self._add(streamed, streamed.encoder.truncate())

    def _there(self, streamed: StreamedTable, key: str) -> None:
        self._keys.add(streamed.name, key)
        if streamed.table.is_recording and self._begin is not None:
            streamed.table.record(key, self._begin.xid)

    def _gone(self, streamed: StreamedTable, key: str) -> None:
        self._keys.remove(streamed.name, key)
        if streamed.table.is_recording and self._begin is not None:
            streamed.table.record(key, self._begin.xid)

    # -------------------------------------------------------------------------------------------- marks

    def _on_mark(self, message: Mark) -> None:
        if message.prefix != PREFIX:
            return
        self._is_marked = message.transactional
        if not message.transactional and message.lsn <= self._start:
            self._evidence.take(message.lsn, A_MARK)
        elif self._pages.is_ours(message.content):
            if message.transactional:
                self._marks.append(message)  # it holds at the commit
            else:
                self._on_arrival(message, message.lsn)

    def _on_arrival(self, mark: Mark, lsn: int) -> None:
        """A mark of this session has arrived: every commit before it was handed over."""
        awaited = self._pages.arrived(mark.content)
        if isinstance(awaited, ReadPage):
            self._hand(self._page(awaited, lsn))
        elif awaited is not None:
            self._hand(Sweep(lsn=lsn, xid=A_MARK, table=awaited))
        else:
            self._hand(Changes(lsn=lsn, xid=A_MARK, keys=Keys()))

    def _page(self, page: ReadPage, lsn: int) -> Changes:
        """Makes the messages of a page, without rows that were published in a newer state already (R17)."""
        table, streamed = page.table, page.streamed
        headers = headers_text(self._capture, lsn, self._generation)
        drafts: list[Draft] = []
        keys, size = Keys(), 0
        rows = () if table.is_emptied(page.snapshot) else page.rows
        for row in rows:
            name = streamed.names.of(row)
            if table.is_newer(name, page.snapshot):
                continue
            keys.add(streamed.name, name)
            for change in streamed.encoder.snapshot(row):
                drafts.append(self._make(change, headers, streamed.encoder))
                size += len(change.payload)
        table.forget(page.snapshot)
        moved = TableProgress(
            table=streamed.name, position=page.position, copied=page.copied, phase=page.phase, expected=page.expected
        )
        return Changes(lsn=lsn, xid=A_MARK, drafts=drafts, keys=keys, page=moved, size=size)


def _nothing(_message: object) -> None:
    """A message that changes no row."""
