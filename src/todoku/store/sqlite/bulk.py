"""Reads and writes whole tables on SQLite; rows are copied as they are stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from todoku.store.database import Bound, DialectName, Tx
from todoku.store.failpoint import reach
from todoku.store.sql import Row, quote
from todoku.store.sqlite.writer import connect, execute_waiting
from todoku.store.table import Table


class SqliteBulk:
    """`Bulk` on a separate connection."""

    dialect: DialectName = "sqlite"

    def __init__(
        self, connection: sqlite3.Connection, path: str, make_tx: Callable[[sqlite3.Connection], Tx], timeout: float
    ) -> None:
        self._connection = connection
        self._path = path
        self._make_tx = make_tx
        self._timeout = timeout

    def place(self) -> str:
        """As `Bulk.place`."""
        file = Path(self._path).stat()
        return f"{file.st_dev}/{file.st_ino}"

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """As `Bulk.freeze`."""
        # Takes the write lock of the file without writing: other writers wait, then get DatabaseBusy.
        execute_waiting(self._connection, "begin immediate", timeout=self._timeout)
        try:
            yield
        finally:
            self._connection.execute("rollback")

    @contextmanager
    def write(self) -> Iterator[None]:
        """As `Bulk.write`."""
        execute_waiting(self._connection, "begin immediate", timeout=self._timeout)
        try:
            yield
            reach("copy.before_commit")
            execute_waiting(self._connection, "commit", timeout=self._timeout)
            reach("copy.after_commit")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")

    def rows(self, query: str, /, **values: Bound) -> list[Row]:
        """As `Bulk.rows`."""
        return self._make_tx(self._connection).rows(query, **values)

    def run(self, statement: str) -> list[Row]:
        """As `Bulk.run`."""
        return self._connection.execute(statement).fetchall()

    def stream(self, statement: str) -> Iterator[Row]:
        """As `Bulk.stream`."""
        yield from self._connection.execute(statement)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """As `Bulk.insert`."""
        names = ", ".join(quote(column.name) for column in table.columns)
        places = ", ".join("?" for _ in table.columns)
        self._connection.executemany(f"insert into {table.name} ({names}) values ({places})", rows)

    def add_history_days(self, days: Sequence[date]) -> None:
        """Does nothing: SQLite has no partitions."""


@contextmanager
def bulk(path: str, make_tx: Callable[[sqlite3.Connection], Tx], *, timeout: float) -> Iterator[SqliteBulk]:
    """Opens a connection for whole tables."""
    connection = connect(path, timeout=timeout)
    try:
        yield SqliteBulk(connection, path, make_tx, timeout)
    finally:
        connection.close()
