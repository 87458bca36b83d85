"""Reads whole tables of PostgreSQL through a server-side cursor, and writes them by COPY."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, Final, cast

import psycopg
from psycopg import errors, sql
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus

from todoku.core.errors import InvalidAct
from todoku.store.database import Bound, DialectName, Tx
from todoku.store.failpoint import reach
from todoku.store.sql import Row, qualify, quote
from todoku.store.table import MINUS_INFINITY, NEVER, Table, tables

_EPOCH: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: the epoch of PostgreSQL."""
_INFINITY: Final = struct.pack(">q", 2**63 - 1)
_LOCK_TIMEOUT_MS: Final = 5_000


class _Binary(Dumper):
    """Converts a copied value to the binary format of COPY."""

    format = Format.BINARY


class _Moment(_Binary):
    oid = psycopg.adapters.types["timestamptz"].oid

    def dump(self, obj: int) -> bytes:
        return _INFINITY if obj == NEVER else struct.pack(">q", obj - _EPOCH)


class _Uuid(_Binary):
    oid = psycopg.adapters.types["uuid"].oid

    def dump(self, obj: str) -> bytes:
        return bytes.fromhex(obj.replace("-", ""))


class _Json(_Binary):
    oid = psycopg.adapters.types["json"].oid

    def dump(self, obj: str) -> bytes:
        return obj.encode()


class _Bool(_Binary):
    oid = psycopg.adapters.types["bool"].oid

    def dump(self, obj: int) -> bytes:
        return b"\x01" if obj else b"\x00"


class PostgresBulk:
    """`Bulk` on a separate connection."""

    dialect: DialectName = "postgresql"

    def __init__(self, connection: psycopg.Connection[Any], tx: Tx, schema: str | None) -> None:
        self._connection = connection
        self._tx = tx
        self._schema = schema

    def place(self) -> str:
        """As `Bulk.place`."""
        return str(self._tx.rows("place")[0][0])

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """As `Bulk.freeze`."""
        names = ", ".join(tables(self))
        with self._transaction():
            self.run(f"lock table {names} in share mode")
            yield

    @contextmanager
    def write(self) -> Iterator[None]:
        """As `Bulk.write`."""
        with self._transaction():
            yield
            reach("copy.before_commit")
            self._connection.execute("commit")
            reach("copy.after_commit")

    def rows(self, query: str, /, **values: Bound) -> list[Row]:
        """As `Bulk.rows`."""
        return self._tx.rows(query, **values)

    def run(self, statement: str) -> list[Row]:
        """As `Bulk.run`."""
        cursor = self._connection.execute(self._qualify(statement))
        return cursor.fetchall() if cursor.description else []

    def stream(self, statement: str) -> Iterator[Row]:
        """As `Bulk.stream`."""
        with self._connection.cursor("todoku_copy", scrollable=False) as cursor:
            cursor.itersize = 500
            cursor.execute(self._qualify(statement), binary=True)
            yield from cursor

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """As `Bulk.insert`."""
        names = ", ".join(quote(column.name) for column in table.columns)
        statement = self._qualify(f"copy {table.name} ({names}) from stdin (format binary)")
        try:
            with self._connection.cursor() as cursor:
                for dumper in (_Moment, _Uuid, _Json, _Bool):
                    cursor.adapters.register_dumper(None, dumper)
                with cursor.copy(statement) as copy:
                    copy.set_types([column.type for column in table.columns])
                    for row in rows:
                        copy.write_row(row)
                self._restore_minus_infinity(table)
        except (psycopg.DataError, errors.IntegrityError) as error:
            raise InvalidAct(
                f"PostgreSQL cannot store a row of {table.name}: {_error_text(error)}",
                hint="correct the row in the source, or empty the target; then run the same command again",
            ) from error

    def _restore_minus_infinity(self, table: Table) -> None:
        for column in table.columns:
            if (table.name, column.name) in MINUS_INFINITY:
                name = quote(column.name)
                self.run(f"update {table.name} set {name} = '-infinity' where {name} = timestamptz 'epoch'")

    def add_history_days(self, days: Sequence[date]) -> None:
        """As `Bulk.add_history_days`."""
        for day in days:
            name = f"todoku_history_{day:%Y%m%d}"
            bounds = f"from ('{day} 00:00Z') to ('{day + timedelta(days=1)} 00:00Z')"
            self.run(f"create table if not exists {name} partition of todoku_history for values {bounds}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # A table may take any time; waiting for a lock may not.
        self._connection.execute(
            f"begin isolation level read committed; set local statement_timeout = 0;"
            f" set local idle_in_transaction_session_timeout = 0;"
            f" set local lock_timeout = {_LOCK_TIMEOUT_MS}"
        )
        try:
            yield
        finally:
            if not self._connection.closed and self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._connection.execute("rollback")

    def _qualify(self, statement: str) -> sql.SQL:
        return cast("sql.SQL", qualify(statement, self._schema))


def _error_text(error: psycopg.Error) -> str:
    """The error and its place: COPY reports line and column in the context."""
    where = (error.diag.context or "").splitlines()[:1]
    return "; ".join([(str(error).strip() or type(error).__name__).splitlines()[0], *where])
