"""Whole tables, as `todoku copy` reads and writes them.

The few statements here are built, not read from `.sql` files: they are about every table there is, those of later
migrations too, so that none can be forgotten. Their names come from the database's own catalogue, never from a caller.

A row travels as SQLite stores it: times as microseconds since 1970 ("never" is the largest integer), booleans as 0 or
1, ids and JSON as text. JSON is `json` on PostgreSQL, which keeps the text it was given; so a row is the same on both
sides, and so is its digest.
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
"""Columns whose 0 is no moment of 1970 but PostgreSQL's -infinity: such a thing has never been."""

_TYPES: Final = {
    "sqlite": {"integer", "text", "real", "blob"},
    "postgresql": {
        "smallint", "integer", "bigint", "double precision", "text", "bytea", "boolean", "uuid", "json",
        "timestamp with time zone",
    },
}  # fmt: skip
"""What is known to travel unchanged. Another type needs a thought first: `jsonb`, for one, rewrites its numbers."""


class Column(msgspec.Struct, frozen=True):
    """A column, and its type in the words of its database."""

    name: str
    type: str


class Table(msgspec.Struct, frozen=True):
    """A table. `key` is what orders its rows: the primary key, or nothing where there is none."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def like(self, other: Table) -> Table:
        """This table with its columns in the order of the other's; SchemaError if they are not the same."""
        own, theirs = ({column.name for column in table.columns} for table in (self, other))
        if own != theirs:
            raise SchemaError(
                f"{self.name} has not the same columns on both sides: {', '.join(sorted(own ^ theirs))}",
                hint="was a table changed by hand? `todoku migrate --print` shows what it should be",
            )
        places = {column.name: place for place, column in enumerate(other.columns)}
        return Table(self.name, tuple(sorted(self.columns, key=lambda column: places[column.name])), self.key)


class Bulk(Protocol):
    """A connection of its own that reads and writes whole tables."""

    dialect: Literal["sqlite", "postgresql"]

    def place(self) -> str:
        """Which database this is, whatever the URL that led to it; another one has another."""

    def freeze(self) -> AbstractContextManager[None]:
        """A transaction during which nobody else can change todoku's tables. DatabaseBusy: somebody is at it."""

    def write(self) -> AbstractContextManager[None]:
        """A transaction that is committed at the end, or rolled back by whatever is raised in it."""

    def rows(self, query: str, /, **values: str | int) -> list[Row]:
        """Runs a named query."""

    def run(self, sql: str) -> list[Row]:
        """Run a statement built here."""

    def stream(self, sql: str) -> Iterator[Row]:
        """The rows of a select built here, without holding all of them."""

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows, as fast as the database can. InvalidAct: it cannot hold one of them."""

    def add_history_days(self, days: Sequence[date]) -> None:
        """Let the history of these days find its place."""


def tables(bulk: Bulk) -> dict[str, Table]:
    """Every table of todoku, by name."""
    found: dict[str, list[tuple[Column, int]]] = {}
    for table, column, kind, place in bulk.rows("tables"):
        if kind not in _TYPES[bulk.dialect]:
            raise SchemaError(
                f"{table}.{column} is of type {kind}, which cannot be copied yet",
                hint="a newer todoku may know how; this one would guess",
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
    """The rows of a table; with `skip` always in the same order, from that place on."""
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
    # Without a key all columns are one: rows that are equal in all of them may change places. JSON has no order.
    columns = table.key or tuple(column.name for column in table.columns if column.type != "json")
    return ", ".join(quote(name) for name in columns)


def count(bulk: Bulk, table: Table) -> int:
    """How many rows it has."""
    ((number,),) = bulk.run(f"select count(*) from {table.name}")
    return int(str(number))


def clear(bulk: Bulk, table: Table) -> None:
    """Remove every row."""
    bulk.run(f"delete from {table.name}" if bulk.dialect == "sqlite" else f"truncate {table.name}")


class Measure(msgspec.Struct, frozen=True):
    """What is in a table: equal rows on both sides make equal measures, in whatever order they lie."""

    rows: int
    digest: str


def measure(rows: Iterable[Row]) -> Measure:
    """Count rows and add up their digests: a sum does not mind the order, and what is there twice counts twice."""
    number, total = 0, 0
    encode, sha256 = msgspec.msgpack.Encoder().encode, hashlib.sha256
    for row in rows:
        number += 1
        total += int.from_bytes(sha256(encode(row)).digest(), "big")
    return Measure(number, f"{total % 2**256:064x}")
