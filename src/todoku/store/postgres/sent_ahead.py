"""Statements that the server runs while the program goes on: a pipeline of psycopg, inside one transaction.

It needs no thread, so an interrupted caller leaves none behind. A statement returns as soon as it is written to the
socket, whose buffer bounds how far the program gets ahead of the server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from todoku.store.sql import Row, Statement, restyle


class SentAhead:
    """The statements of one transaction that were sent and not answered yet."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pipeline = ExitStack()
        self._sent: list[tuple[psycopg.Cursor[Row], list[Row]]] = []

    def __bool__(self) -> bool:
        return bool(self._sent)

    def run(self, statement: Statement) -> list[Row]:
        """Sends a statement, and waits for it and for all before it unless it is ahead, too.

        Returns the list that its rows are added to when the server has answered. Raises the first error of all.
        """
        rows = self._send(restyle(statement.sql, "pyformat"), cast("Mapping[str, Any]", statement.values))
        if not statement.ahead or not psycopg.Pipeline.is_supported():
            self._arrive()
        return rows

    def _send(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        if not self._sent and psycopg.Pipeline.is_supported():
            self._pipeline.enter_context(self._connection.pipeline())
        cursor = psycopg.Cursor(self._connection, row_factory=_tuples)
        rows: list[Row] = []
        self._sent.append((cursor, rows))
        cursor.execute(cast("sql.SQL", text), values)
        self._connection.wait(_written(self._connection.pgconn))
        return rows

    def _arrive(self) -> None:
        """Waits until the server has run all that was sent, and adds the rows to their lists."""
        sent, self._sent = self._sent, []
        self._pipeline.close()
        for cursor, rows in sent:
            if cursor.description:
                rows.extend(cursor.fetchall())

    def abandon(self, error: BaseException) -> None:
        """Waits until the server has answered, and ignores its answers: the transaction is to be rolled back."""
        self._sent = []
        self._pipeline.__exit__(type(error), error, error.__traceback__)


def _tuples(_cursor: object) -> Any:
    return tuple


def _written(pgconn: PGconn) -> Generator[Wait, Ready | int, None]:
    """Waits until everything is written. Without this, the server would wait for the rest of a large statement."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
