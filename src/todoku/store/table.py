"""Whole tables, as `todoku copy` reads and writes them.

The statements here are built, not read from `.sql` files: they handle every table, of later migrations, too, so that
none is forgotten. Table and column names come from the database's catalogue, never from a caller.

A row is copied in the form in which SQLite stores it: times as microseconds since 1970 ("never" is the largest
integer), booleans as 0 or 1, ids and JSON as text. JSON is `json` on PostgreSQL, which preserves the text; so a row
and its digest are the same on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import Final, Literal, Protocol

import msgspec

from todoku.core.errors import SchemaError
from todoku.store.sql import quote
from todoku.store.statements import Row

NEVER: Final = 2**63 - 1
MINUS_INFINITY: Final = frozenset({("todoku_destination", "open_until"), ("todoku_destination", "seen_at")})
"""Columns in which 0 means PostgreSQL's -infinity (it never happened), not the start of 1970."""

_TYPES: Final = {
    "sqlite": {"integer", "text", "real", "blob"},
    "postgresql": {
        "smallint", "integer", "bigint", "double precision", "text", "bytea", "boolean", "uuid", "json",
        "timestamp with time zone",
    },
}  # fmt: skip
"""Types that are known to be copied unchanged. Check a type before you add it: `jsonb`, for one, rewrites numbers."""


class Column(msgspec.Struct, frozen=True):
    """A column, and the name of its type in its database."""

    name: str
    type: str


class Table(msgspec.Struct, frozen=True):
    """A table. `key`: the columns of its primary key, which order its rows; empty if it has none."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def like(self, other: Table) -> Table:
        """Returns this table with its columns in the order of `other`; SchemaError if the columns differ."""
        own, theirs = ({column.name for column in table.columns} for table in (self, other))
        if own != theirs:
            raise SchemaError(
                f"{self.name} has different columns on the two sides: {', '.join(sorted(own ^ theirs))}",
                hint="was a table changed by hand? `todoku migrate --print` shows what it should be",
            )
        places = {column.name: place for place, column in enumerate(other.columns)}
        return Table(self.name, tuple(sorted(self.columns, key=lambda column: places[column.name])), self.key)


class Bulk(Protocol):
    """A separate connection that reads and writes whole tables."""

    dialect: Literal["sqlite", "postgresql"]

    def place(self) -> str:
        """Identifies the database, regardless of its URL."""

    def freeze(self) -> AbstractContextManager[None]:
        """A transaction in which no other connection can write todoku's tables. DatabaseBusy: one is writing."""

    def write(self) -> AbstractContextManager[None]:
        """A transaction that is committed at the end, or rolled back if the block raises."""

    def rows(self, query: str, /, **values: str | int) -> list[Row]:
        """Runs a named query."""

    def run(self, sql: str) -> list[Row]:
        """Runs a statement that was built in this module."""

    def stream(self, sql: str) -> Iterator[Row]:
        """Yields the rows of a select that was built in this module, without loading all of them."""

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Inserts rows by the fastest way of the database. InvalidAct: the database cannot store one of them."""

    def add_history_days(self, days: Sequence[date]) -> None:
        """Creates the history partitions of these days, where the database has partitions."""


def tables(bulk: Bulk) -> dict[str, Table]:
    """Every table of todoku, by name."""
    found: dict[str, list[tuple[Column, int]]] = {}
    for table, column, kind, place in bulk.rows("tables"):
        if kind not in _TYPES[bulk.dialect]:
            raise SchemaError(
                f"{table}.{column} is of type {kind}, which cannot be copied yet",
                hint="upgrade todoku: a newer version may support this type",
            )
        found.setdefault(str(table), []).append((Column(str(column), str(kind)), int(str(place))))
    return {
        name: Table(
            name,
            tuple(column for column, _ in columns),
            tuple(column.name for column, place in sorted(columns, key=lambda pair: pair[1]) if place),
        )
        for name, columns in found.items()
    }


def read(bulk: Bulk, table: Table, *, skip: int | None = None) -> Iterator[Row]:
    """Yields the rows of a table; with `skip`, in a fixed order, without the first `skip` rows."""
    chosen = ", ".join(_select_expression(column, bulk.dialect) for column in table.columns)
    statement = f"select {chosen} from {table.name}"
    if skip is not None:
        statement += f" order by {_order(table, bulk.dialect)}"
        statement += f" limit -1 offset {skip}" if bulk.dialect == "sqlite" else f" offset {skip}"
    return bulk.stream(statement)


def _select_expression(column: Column, dialect: str) -> str:
    name = quote(column.name)
    if dialect == "sqlite":
        return name
    match column.type:
        case "timestamp with time zone":
            return (
                f"case when {name} = 'infinity' then {NEVER} when {name} = '-infinity' then 0"
                f" else (extract(epoch from {name}) * 1000000)::bigint end"
            )
        case "uuid" | "json":
            return f"{name}::text"
        case "boolean":
            return f"{name}::integer"
        case _:
            return name


def _order(table: Table, dialect: str) -> str:
    if not table.key and dialect == "sqlite":
        return "rowid"
    # Without a primary key all columns order the rows: the order of equal rows does not matter. JSON is not ordered.
    columns = table.key or tuple(column.name for column in table.columns if column.type != "json")
    return ", ".join(quote(name) for name in columns)


def count(bulk: Bulk, table: Table) -> int:
    """Returns the number of rows."""
    ((number,),) = bulk.run(f"select count(*) from {table.name}")
    return int(str(number))


def clear(bulk: Bulk, table: Table) -> None:
    """Removes every row."""
    bulk.run(f"delete from {table.name}" if bulk.dialect == "sqlite" else f"truncate {table.name}")


class Measure(msgspec.Struct, frozen=True):
    """The number of rows and their digest: equal for equal sets of rows, in any order."""

    rows: int
    digest: str


def measure(rows: Iterable[Row]) -> Measure:
    """Counts rows and adds up their digests: a sum is independent of the order, and counts duplicates."""
    number, total = 0, 0
    encode, sha256 = msgspec.msgpack.Encoder().encode, hashlib.sha256
    for row in rows:
        number += 1
        total += int.from_bytes(sha256(encode(row)).digest(), "big")
    return Measure(number, f"{total % 2**256:064x}")
