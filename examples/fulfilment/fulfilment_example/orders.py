"""The table of orders, in the database that todoku uses too. Its functions take an open connection of either driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TABLE = """\
create table if not exists orders (
    id integer primary key, amount integer not null, skus text not null, state text not null, run text, shelves text
)"""


@contextmanager
def transaction(url: str) -> Iterator[Any]:
    """A connection whose statements commit together at the end, or not at all."""
    if url.startswith("sqlite:///"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)
    else:
        import psycopg  # noqa: PLC0415 - SQLite does without it

        connection = psycopg.connect(url)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def run(tx: Any, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Runs a statement with `?` for each value; returns its rows."""
    on_sqlite = isinstance(tx, sqlite3.Connection)
    cursor = tx.execute(statement if on_sqlite else statement.replace("?", "%s"), values)
    return [] if cursor.description is None else cursor.fetchall()


def insert(tx: Any, amount: int, skus: str) -> int:
    """Stores a new order. Returns its number."""
    number = "select coalesce(max(id), 0) + 1 from orders"
    ((order,),) = run(tx, f"insert into orders values (({number}), ?, ?, 'new', null, null) returning id", amount, skus)
    return int(order)


def move(tx: Any, order: int, state: str, *before: str) -> bool:
    """Gives an order another state, if it is in one of those before. Returns whether it was."""
    places = ", ".join("?" * len(before))
    return bool(
        run(tx, f"update orders set state = ? where id = ? and state in ({places}) returning id", state, order, *before)
    )
