"""A transaction of todoku on one PostgreSQL connection, and how its values are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from todoku.store.database import Bound
from todoku.store.postgres.sent_ahead import SentAhead
from todoku.store.sql import Row, Statement, restyle


class PostgresTx:
    """A transaction on one connection.

    `prepare`: whether its queries are prepared when they run first; None: when they have run a few times.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], queries: Mapping[str, str], *, prepare: bool | None = None
    ) -> None:
        self.connection = connection
        self._queries = queries
        self._prepare = prepare
        self.ahead = SentAhead(connection)

    def rows(self, query: str, /, **values: Bound | Sequence[Mapping[str, Any]]) -> list[Any]:
        """Runs a named query with these values, and returns its rows."""
        bound = {name: adapt(value) for name, value in values.items()}
        cursor = self.connection.execute(self._queries[query], bound, prepare=self._prepare, binary=True)
        # Whether there are rows. `cursor.description` would create an object for every column.
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    def statement(self, statement: Statement) -> list[Row]:
        """Runs one statement of a publish. A statement may be sent ahead; then its rows come later."""
        if statement.ahead or self.ahead:
            return self.ahead.run(statement)
        cursor = self.connection.execute(restyle(statement.sql, "pyformat"), statement.values)
        return cursor.fetchall() if cursor.description else []


def adapt(value: object) -> object:
    """Converts numbers to one array literal, far cheaper than psycopg's list adapter, and documents to JSON.

    A mapping of numbers, such as tokens, is an array of two rows: its keys and its values. An empty list is a literal,
    too: psycopg would give it another type, and the statement would be planned once more.
    """
    if isinstance(value, list | tuple) and value:
        if isinstance(value[0], int | float):
            return "{" + ",".join(map(str, value)) + "}"
        if isinstance(value[0], dict):
            return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return list(value) if value else "{}"
    if isinstance(value, dict):
        if value and isinstance(next(iter(value)), int):
            return f"{{{{{','.join(map(str, value))}}},{{{','.join(map(str, value.values()))}}}}}"
        return msgspec.json.encode(value).decode()
    return value
