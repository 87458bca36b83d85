"""Reads the rows that exist already, in pages by key, while changes flow (R17). Keys it has not seen are gone (R20)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from todoku.capture.checks import relation_of
from todoku.capture.pages import Pages, ReadPage
from todoku.capture.source import SourceSession
from todoku.capture.tables import CapturedTable, StreamedTable
from todoku.core.capture import parse_snapshot
from todoku.core.errors import CaptureError
from todoku.core.pgoutput import Relation, Row
from todoku.engine.observability.log import Log
from todoku.store.capture_portions import Phase, TableProgress


class Snapshots:
    """The snapshots of a session, one table after the other. `step` belongs to the attending thread.

    One page is under way at a time: the next one is read when it is stored. A killed session leaves the position of the
    last stored page, from which the next one goes on.
    """

    def __init__(
        self,
        capture: str,
        source: SourceSession,
        pages: Pages,
        tables: Iterable[CapturedTable],
        *,
        page_rows: int,
    ) -> None:
        self._log = Log(capture=capture)
        self._source = source
        self._pages = pages
        self._tables = [table for table in tables if table.phase != "done"]
        self._under_way = threading.Event()
        self._floor: int | None = None
        self._reaches_floor = False
        self._page_rows = page_rows
        self._described: dict[str, StreamedTable] = {}

    @property
    def is_done(self) -> bool:
        """Whether every table was read."""
        return not self._tables

    def step(self) -> bool:
        """Does the next thing, if there is one that need not wait. Returns whether it did."""
        if self.is_done or self._under_way.is_set() or not self._may_begin():
            return False
        table = self._tables[0]
        if table.phase == "sweeping":
            self._describe(table)
            awaited: ReadPage | str = table.rule.table
        else:
            try:
                awaited = self._read(table)
            except psycopg.errors.LockNotAvailable:  # a change of the table's definition has it: the stream goes on
                return False
        self._under_way.set()
        self._source.mark(self._pages.expect(awaited))
        return True

    def stored(self, page: TableProgress) -> None:
        """Takes note that a page, or a sweep, is stored. The storing thread calls it."""
        table = self._tables[0]
        table.phase, table.position, table.copied = page.phase, page.position, page.copied
        if page.phase == "done":
            table.finish()
            self._tables.remove(table)
            self._log.info("CAPTURE_SNAPSHOT_DONE", table=page.table, rows=page.copied)
        self._under_way.clear()

    def swept(self, name: str) -> tuple[CapturedTable, StreamedTable]:
        """Returns the table whose sweep is under way."""
        return self._tables[0], self._described[name]

    def _may_begin(self) -> bool:
        """Whether every transaction that this session does not record is visible to pages.

        The session records which rows change from its beginning on. A transaction before that may have been published
        by an earlier session, or lie before the slot, and yet be invisible for now: its commit is in the log first.
        """
        if self._reaches_floor:
            return True
        if self._floor is None:
            ((self._floor,),) = self._source.rows("next_xid")
        ((oldest,),) = self._source.rows("oldest_xid")
        self._reaches_floor = oldest >= self._floor
        return self._reaches_floor

    def _read(self, table: CapturedTable) -> ReadPage:
        rule = table.rule
        with self._source.page_transaction((rule.schema, rule.name)) as text:
            streamed, types = self._describe(table)
            rows = self._rows(table, streamed.relation, types)
        is_last = len(rows) < self._page_rows
        phase: Phase = "reading"
        if is_last:
            phase = "done" if table.state.generation <= 1 else "sweeping"
        return ReadPage(
            table=table, streamed=streamed, rows=rows, snapshot=parse_snapshot(text), phase=phase,
            position=_position(table, streamed.relation, rows[-1]) if rows and not is_last else None,
            copied=table.copied + len(rows), expected=table.source.expected,
        )  # fmt: skip

    def _describe(self, table: CapturedTable) -> tuple[StreamedTable, tuple[str, ...]]:
        """Returns the table with the columns it has now: they may have changed since the last page."""
        known = table.source.relation
        columns = self._source.rows("columns", oid=known.oid)
        relation = relation_of(known.oid, table.rule, known.identity, columns, table.source.paging)
        streamed = self._described.get(table.rule.table)
        if streamed is None or streamed.relation != relation:
            names = {column.name for column in relation.columns}
            if missing := [name for name in table.source.paging if name not in names]:
                raise CaptureError(
                    f"{table.rule.table} has no column {missing[0]} any more", hint="it is looked at again",
                    reason="SOURCE_AWAY",
                )  # fmt: skip
            streamed = self._described[table.rule.table] = StreamedTable(relation, table)
        return streamed, tuple(type_name for _, _, type_name in columns)

    def _rows(self, table: CapturedTable, relation: Relation, types: tuple[str, ...]) -> list[Row]:
        type_of = dict(zip((column.name for column in relation.columns), types, strict=True))
        paging = table.source.paging
        key = sql.SQL(", ").join(map(sql.Identifier, paging))
        after: sql.Composable = sql.SQL("")
        values: list[str] = []
        if table.position is not None:
            values = msgspec.json.decode(table.position, type=list[str])
        if len(values) == len(paging):  # otherwise its index has changed since the last page: it begins anew
            # The names of types are those of the catalog, which quotes them.
            casts = ["%s::" + type_of[name].replace("%", "%%") for name in paging]
            bound = sql.SQL(", ").join(map(sql.SQL, casts))
            after = sql.SQL("where ({}) > ({})").format(key, bound)
        query = sql.SQL("select {} from {} {} {} order by {} limit {}").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
            sql.SQL("" if table.source.is_partitioned else "only"),  # the stream does not have tables that inherit
            sql.Identifier(table.rule.schema, table.rule.name), after, key, sql.Literal(self._page_rows),
        )  # fmt: skip
        return _raw_rows(self._source.connection.execute(query, values or None))


def _raw_rows(cursor: Any) -> list[Row]:
    """Returns the texts that the server sent: the same that the stream has."""
    result = cursor.pgresult
    columns = range(result.nfields)
    return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


def _position(table: CapturedTable, relation: Relation, row: Row) -> str:
    places = {column.name: place for place, column in enumerate(relation.columns)}
    values = [row[places[name]] for name in table.source.paging]
    return msgspec.json.encode([value.decode() for value in values if isinstance(value, bytes)]).decode()
