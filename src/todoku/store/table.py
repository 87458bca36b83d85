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
from datetime import date, timedelta
from typing import Final, Literal, Protocol

import msgspec

from todoku.core.errors import SchemaError
from todoku.store.columns import EPOCH
from todoku.store.sql import Row, quote

# ------------------------------------------------------------
# The progress of a copy, stored in its target, and the queries it runs on both sides. See `table.py` for tables.

NOT_COPIED: Final = {
    "todoku_migration": "each database has its own",
    "todoku_worker": "a lease is valid in one database; deliveries of ended leases are reclaimed in the target, too",
    "todoku_claim_list": "claims of workers; what they name is free in the target, where these workers have no lease",
    "todoku_count": "a cache: counted again",
    "todoku_projection_writer": "an acknowledgement of a worker, which holds a lease in one database",
    "todoku_capture_stage": "a part of a source transaction that is not stored yet; the next reader reads it again",
    "todoku_session": "browsers sign in again: the target may have another address",
    "todoku_copy": "the progress of an unfinished copy; removed when it has finished",
}
"""Tables that are not copied, and why. Every other table of todoku is copied, of later migrations, too."""

AT_ONCE: Final = ("todoku_audit", "todoku_lane", "todoku_delivery")
"""Tables that are written by the last commit. Without deliveries nothing can run in the target, so a copy that was
killed, or found to differ, does no harm. Audit rows are never deleted, so they must not be there if a copy restarts."""

_ROWS: Final = 5_000
_BYTES: Final = 8 << 20
_DAYS: Final = 1_000


class Progress(msgspec.Struct, frozen=True):
    """The progress of an unfinished copy: its source, and the number of copied rows by table."""

    origin: str
    done: dict[str, int]


def origin(bulk: Bulk) -> str:
    """Identifies a database among others with the same schema: the times of its migrations."""
    return ".".join(str(moment) for (moment,) in bulk.rows("migrated_at"))


def leases(bulk: Bulk) -> list[str]:
    """The names of workers whose lease has not ended."""
    return [str(name) for (name,) in bulk.rows("leases")]


def read_progress(bulk: Bulk) -> Progress | None:
    """Returns the progress of the copy into this database; None: there is none, or it has finished."""
    if bulk.rows("copy_begun") == [(0,)]:
        return None
    done = {str(name): (int(str(rows)), str(came)) for name, rows, came in bulk.rows("copy_stand")}
    (came,) = {came for _, came in done.values()}
    return Progress(came, {name: rows for name, (rows, _) in done.items()})


def begin(bulk: Bulk, names: Iterable[str], source: str) -> Progress:
    """Records the start of a copy."""
    bulk.rows("copy_begin")
    done = dict.fromkeys(names, 0)
    for name in done:
        record_progress(bulk, name, 0, source)
    return Progress(source, done)


def record_progress(bulk: Bulk, name: str, rows: int, source: str) -> None:
    """Records the number of copied rows of a table, in the transaction that writes them."""
    bulk.rows("copy_note", name=name, rows=rows, origin=source)


def end(bulk: Bulk) -> None:
    """Records the end of the copy."""
    bulk.rows("copy_end")


def identities(bulk: Bulk) -> dict[str, int]:
    """The last id each table assigned, even if its row was deleted since."""
    return {str(name): int(str(last)) for name, last in bulk.rows("identities")}


def raise_identities(bulk: Bulk, wanted: dict[str, int]) -> None:
    """Raises the id counters past these values: a token (id, epoch, worker) works once, so no id may be reused."""
    present = identities(bulk)
    for name, last in wanted.items():
        if last > present.get(name, 0):
            bulk.rows("set_identity", name=name, last=last)


def history_days(bulk: Bulk) -> tuple[date, ...]:
    """The days of the history, the latest thousand."""
    rows = bulk.rows("history_days", most=_DAYS)
    return tuple(EPOCH.date() + timedelta(days=int(str(day))) for (day,) in rows)


def batches(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Yields rows in batches of one transaction each, limited in rows and in bytes: a payload may have a megabyte."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) >= _ROWS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def select_tables(found: dict[str, Table]) -> tuple[Table, ...]:
    """The tables to copy, in order: those of the last commit come last."""
    names = sorted(set(found) - set(NOT_COPIED) - set(AT_ONCE))
    return tuple(found[name] for name in (*names, *AT_ONCE))


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
        if table == "todoku_claim_list":
            continue  # PostgreSQL alone has it
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
