"""The chronicle: what happened to each document, an entry for each event, in its order, once."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, text

import todoku
from projections_example.database import open_engine, run_schema

ENTRIES = text("select number, what, title, at from chronicle_entries where document_id = :id order by number")
NUMBERS = text("select document_id, number, what from chronicle_entries order by document_id, number")
LAST = "select coalesce(max(number), 0) from chronicle_entries where document_id = ?"
INSERT = "insert into chronicle_entries (document_id, number, what, title, at, message_id) values (?, ?, ?, ?, ?, ?)"


def write_entry(change: todoku.Change, tx: Any) -> None:
    """Insert the entry of an event, through the connection of its database: sqlite3's, or psycopg's.

    An entry follows from the one before it. If that is missing, an event was lost or came too early, and to go on would
    hide it: the event is a dead letter, and later events of this document wait behind it. Other documents go on.
    """
    document = change.payload
    number = int(document["revision"])
    (last,) = _execute(tx, LAST, (change.key,)).fetchone()
    if last != number - 1:
        raise todoku.Abort("GAP", f"entry {number} follows entry {last}")
    at = datetime.fromtimestamp(change.created_at, UTC).isoformat(timespec="milliseconds")
    what = change.topic.rpartition(".")[2]
    _execute(tx, INSERT, (change.key, number, what, document["title"], at, change.message_id))


def _execute(tx: Any, sql: str, values: tuple[object, ...]) -> Any:
    """sqlite3 writes a parameter `?`, psycopg `%s`."""
    return tx.execute(sql if isinstance(tx, sqlite3.Connection) else sql.replace("?", "%s"), values)


class Chronicle:
    """The entries, to be read: in the database of the documents or in another."""

    def __init__(self, database: str) -> None:
        self.engine: Engine = open_engine(database)
        self._reading = open_engine(database, writes=False)

    def prepare(self) -> None:
        """Make the table, where it is missing."""
        run_schema(self.engine, "chronicle")

    def entries(self, document_id: str) -> list[dict[str, Any]]:
        """What happened to one document."""
        with self._reading.connect() as tx:
            return [dict(row._mapping) for row in tx.execute(ENTRIES, {"id": document_id})]

    def numbers(self) -> dict[str, list[tuple[int, str]]]:
        """The entries of every document: number and what happened."""
        found: dict[str, list[tuple[int, str]]] = {}
        with self._reading.connect() as tx:
            for id, number, what in tx.execute(NUMBERS):
                found.setdefault(id, []).append((number, what))
        return found

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()
        self._reading.dispose()
