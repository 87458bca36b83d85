"""Connections of the example's own, to the database that todoku uses too: sqlite3 or psycopg, the same few calls."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Protocol

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
"""`:name`, and not the cast `::name`."""

Row = dict[str, Any]


class Transaction:
    """An open transaction. Statements name their parameters `:name` on both databases."""

    named = r":\1"

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        """The driver's own connection: what todoku takes as `tx=`."""

    def rows(self, sql: str, **values: object) -> list[Row]:
        """What a query finds."""
        cursor = self._run(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, sql: str, **values: object) -> Row | None:
        """The first of it."""
        return next(iter(self.rows(sql, **values)), None)

    def change(self, sql: str, **values: object) -> int:
        """How many rows a statement changed."""
        return int(self._run(sql, values).rowcount)

    def value(self, value: object) -> object:
        """A parameter as the driver wants it. SQLite has no times: they are text, in UTC."""
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else value

    def _run(self, sql: str, values: dict[str, object]) -> Any:
        given = {name: self.value(value) for name, value in values.items()}
        return self.connection.execute(_PARAMETER.sub(self.named, sql), given)


class PostgresTransaction(Transaction):
    """The same with psycopg, which knows times."""

    named = r"%(\1)s"

    def value(self, value: object) -> object:
        """As it is."""
        return value


class Database(Protocol):
    """Where the users are."""

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[Transaction]:
        """Commits what was done inside, or, if that raises, nothing of it."""

    def prepare(self) -> None:
        """Make the example's tables and its view, where they are missing. todoku's own must be there."""

    def close(self) -> None:
        """Give back every connection."""


class Sqlite:
    """A connection per transaction: opening one costs less than sharing it between threads would."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[Transaction]:
        """As Database.transaction."""
        with closing(self._open()) as connection:
            # One that begins by reading and goes on to write could find that somebody else has written.
            connection.execute("begin immediate" if writes else "begin")
            try:
                yield Transaction(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def prepare(self) -> None:
        """As Database.prepare."""
        with closing(self._open()) as connection:
            connection.executescript(_schema("sqlite"))

    def close(self) -> None:
        """Nothing is open."""


class Postgres:
    """A pool: who finds it empty waits, and is refused after half a minute."""

    def __init__(self, url: str) -> None:
        from psycopg_pool import ConnectionPool  # noqa: PLC0415 - only where PostgreSQL is used

        self._pool = ConnectionPool(url, min_size=1, max_size=10, open=True, timeout=30)

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[Transaction]:  # noqa: ARG002 - makes no difference
        """As Database.transaction."""
        with self._pool.connection() as connection:
            yield PostgresTransaction(connection)

    def prepare(self) -> None:
        """As Database.prepare."""
        with self._pool.connection() as connection:
            connection.execute(_schema("postgres"))

    def close(self) -> None:
        """As Database.close."""
        self._pool.close()


def open_database(url: str) -> Database:
    """The database of a URL that todoku has accepted already."""
    if url.startswith("sqlite:///"):
        return Sqlite(url.removeprefix("sqlite:///").split("?", 1)[0])
    return Postgres(f"postgresql://{url.partition('://')[2]}")


def _schema(dialect: str) -> str:
    return files("users_example").joinpath("schema", f"{dialect}.sql").read_text("utf-8")
