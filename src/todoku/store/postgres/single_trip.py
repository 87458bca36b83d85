"""One statement with its transaction in one round trip: begin, settings, statement and commit in one message.

A publish of one message is such a statement. By itself it takes three round trips, and each of them costs the client a
switch of threads (decision 43). Parameters are literals of an EXECUTE, because a message of several statements has no
parameters; the statement itself is prepared on the connection, so it is parsed and planned once.
"""

from __future__ import annotations

import hashlib
import selectors
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from todoku.store.sql import Row, Statement, Value, parameters, restyle

WARM: Final = 5
"""Single statements that a connection runs in three trips before it prepares one, as psycopg does itself."""

_TYPES: Final[Mapping[type, str]] = {str: "text", bool: "boolean"}


class SingleTrip:
    """Runs statements on connections that keep what was prepared on them: not behind a pooler of transactions."""

    def __init__(self, begin: str) -> None:
        self._begin = begin
        self.pooled = False
        """Whether a pooler was seen. Then nothing is sent this way again."""

    def run(self, connection: psycopg.Connection[Any], statement: Statement) -> list[Row] | None:
        """Runs the statement in a transaction of its own, commits, and returns its rows.

        None: nothing was done, because it is no longer prepared here. Any error means that it was rolled back; but
        after the connection broke nobody knows.
        """
        values = cast("Mapping[str, Value]", statement.values)
        given = ", ".join(_literal(values[place]) for place in _places(statement.sql))
        try:
            cursor = self._send(connection, f"execute {statement_name(statement.sql)} ({given})")
        except errors.InvalidSqlStatementName:  # psycopg drops what is prepared after each rollback
            _runs(connection).clear()
            return None
        while cursor.description is None and cursor.nextset():
            pass  # results of `begin` and of the settings
        return cursor.fetchall() if cursor.description else []

    def is_prepared(self, connection: psycopg.Connection[Any], statement: Statement) -> bool:
        """Whether the statement may be sent: it is prepared on this connection, and the connection is not broken.

        A whole transaction must not be sent again after the connection broke, so a broken one is to be seen before.
        """
        if connection.closed or _is_readable(connection):
            return False
        runs, name = _runs(connection), statement_name(statement.sql)
        runs[name] = runs.get(name, 0) + 1
        if runs[name] == WARM + 1:
            self._prepare(connection, name, statement)
        return runs[name] > WARM and not self.pooled

    def _prepare(self, connection: psycopg.Connection[Any], name: str, statement: Statement) -> None:
        """Prepares a statement, unless a pooler answers: it may give the next transaction another server process."""
        ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
        self.pooled = pid != connection.info.backend_pid
        if self.pooled:
            return
        values = cast("Mapping[str, Value]", statement.values)
        types = ", ".join(_TYPES[type(values[place])] for place in _places(statement.sql))
        try:
            self._send(connection, f"prepare {name} ({types}) as {restyle(statement.sql, 'dollar')}")
        except psycopg.Error:
            _runs(connection).clear()
            raise

    def _send(self, connection: psycopg.Connection[Any], text: str) -> psycopg.Cursor[Any]:
        try:
            return connection.execute(f"{self._begin}; {text}; commit".encode(), prepare=False)
        except BaseException:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("rollback")
            raise


@lru_cache(maxsize=16)
def statement_name(text: str) -> str:
    """The name of a prepared statement: another text has another one."""
    return f"todoku_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@lru_cache(maxsize=16)
def _places(text: str) -> tuple[str, ...]:
    """The names of a statement's parameters, in the order of their numbers."""
    return tuple(dict.fromkeys(parameters(text)))


def _runs(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """How often a connection was to run which statement."""
    return cast("dict[str, int]", connection.__dict__.setdefault("todoku_runs", {}))


def _literal(value: Value) -> str:
    """A value as SQL, whether or not the server takes backslashes in plain literals for escapes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = cast("str", value)
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _is_readable(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has sent something unasked: the end of the connection, or a notice."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))
