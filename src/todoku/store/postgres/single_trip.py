"""One statement with its transaction in one round trip: begin, settings, statement and commit in one pipeline.

A publish of one message is such a statement. In three round trips it costs three times the client's processor time, and
psycopg's own pipeline costs more than it saves (decision 43). So this speaks to libpq itself, by what psycopg exports
for that: `pgconn`, and `Connection.wait`, which waits as every call of psycopg does. Parameters stay parameters: a
payload is neither in the server's log of statements nor in pg_stat_activity.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, cast

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from todoku.store.sql import Row, Statement, Value, parameters, restyle

WARM: Final = 5
"""Single statements that a connection runs in three trips before it prepares one, as psycopg does itself."""

_BEGIN, _SET, _RUN, _COMMIT = "begin", "set", "run", "commit"

Send = Callable[[], object]


class SingleTrip:
    """Runs statements on connections that keep what was prepared on them: not behind a pooler of transactions."""

    def __init__(self, begin: str, settings: Mapping[str, str]) -> None:
        self._begin = begin
        calls = [f"set_config('{name}', '{value}', true)" for name, value in settings.items()]
        self._settings = f"select {', '.join(calls)}"
        self.is_possible = psycopg.Pipeline.is_supported()
        """False: libpq has no pipeline, or a pooler was seen. Then nothing is sent this way again."""

    def is_prepared(self, connection: psycopg.Connection[Any], statement: Statement) -> bool:
        """Whether the statement may be sent: it is prepared on this connection, and the connection is not broken.

        A whole transaction must not be sent again after the connection broke, so a broken one is to be seen before.
        """
        if connection.closed or _is_readable(connection):
            return False
        memory = _memory(connection)
        if memory.prepared != statement.sql:
            memory.runs += 1
            if memory.runs > WARM:
                self._prepare(connection, statement)
        return memory.prepared == statement.sql

    def run(self, connection: psycopg.Connection[Any], statement: Statement) -> list[Row] | None:
        """Runs the statement in a transaction of its own, commits, and returns its rows.

        None: nothing was done, because it is no longer prepared here. Any error means that it was rolled back; but
        after the connection broke nobody knows.
        """
        pgconn, name = connection.pgconn, _memory(connection).name
        values = cast("Mapping[str, Value]", statement.values)
        given = [_encoded(values[place]) for place in _places(statement.sql)]
        try:
            results = _exchange(
                connection,
                partial(pgconn.send_query_prepared, name(_BEGIN), None),
                partial(pgconn.send_query_prepared, name(_SET), None),
                partial(pgconn.send_query_prepared, name(_RUN), given),
                partial(pgconn.send_query_prepared, name(_COMMIT), None),
            )
        except errors.InvalidSqlStatementName:  # psycopg drops everything that is prepared after a rollback
            _memory(connection).prepared = None
            return None
        loader = Transformer(connection)
        loader.set_pgresult(results[2])
        return loader.load_rows(0, results[2].ntuples, tuple)

    def _prepare(self, connection: psycopg.Connection[Any], statement: Statement) -> None:
        """Prepares a statement, unless a pooler answers: it may give the next transaction another server process.

        That takes locks, so it is done in a transaction with its settings.
        """
        ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
        if pid != connection.info.backend_pid:
            self.is_possible = False
            return
        pgconn, memory = connection.pgconn, _memory(connection)
        memory.number += 1  # what an attempt that failed has prepared keeps its names
        name = memory.name
        _exchange(
            connection,
            partial(pgconn.send_prepare, name(_BEGIN), self._begin.encode()),
            partial(pgconn.send_prepare, name(_SET), self._settings.encode()),
            partial(pgconn.send_prepare, name(_COMMIT), b"commit"),
            partial(pgconn.send_query_prepared, name(_BEGIN), None),
            partial(pgconn.send_query_prepared, name(_SET), None),
            partial(pgconn.send_prepare, name(_RUN), restyle(statement.sql, "dollar").encode()),
            partial(pgconn.send_query_prepared, name(_COMMIT), None),
        )
        memory.prepared = statement.sql


class _Memory:
    """What was prepared on one connection."""

    def __init__(self) -> None:
        self.runs = 0
        self.number = 0
        self.prepared: str | None = None

    def name(self, what: str) -> bytes:
        """The name of a prepared statement, beside those of psycopg."""
        return f"todoku_{self.number}_{what}".encode()


def _memory(connection: psycopg.Connection[Any]) -> _Memory:
    return cast("_Memory", connection.__dict__.setdefault("todoku_memory", _Memory()))


def _exchange(connection: psycopg.Connection[Any], *sends: Send) -> list[PGresult]:
    """Sends commands as one pipeline and returns a result of each. Raises the first error, after a rollback."""
    pgconn = connection.pgconn
    try:
        pgconn.enter_pipeline_mode()
        results = connection.wait(_communicate(pgconn, sends))
        pgconn.exit_pipeline_mode()
    except BaseException:
        connection.close()  # in the middle of a pipeline it is of no more use
        raise
    failed = next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
    if failed is None:
        return results
    if connection.info.transaction_status != TransactionStatus.IDLE:
        connection.execute("rollback")
    raise errors.error_from_result(failed)


def _communicate(pgconn: PGconn, sends: Sequence[Send]) -> Generator[Wait, Ready | int, list[PGresult]]:
    """The exchange, as `Connection.wait` runs it: yields what it waits for."""
    for send in sends:
        send()
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            continue  # the end of one command
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


@lru_cache(maxsize=16)
def _places(text: str) -> tuple[str, ...]:
    """The names of a statement's parameters, in the order of their numbers."""
    return tuple(dict.fromkeys(parameters(text)))


def _encoded(value: Value) -> bytes:
    """A parameter in the server's text form. Its type follows from the statement, which casts it."""
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return cast("str", value).encode()


def _is_readable(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has sent something unasked: the end of the connection, or a notice."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))
