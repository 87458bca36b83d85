"""One statement with its transaction in one round trip: begin, settings, statement and commit in one pipeline.

A publish of one message, a claim and the look for what waits are such statements. In three round trips they cost three
times the client's processor time, and psycopg's own pipeline costs more than it saves (decision 43). So this speaks to
libpq itself, by what psycopg exports for that: `pgconn`, and `Connection.wait`, which waits as every call of psycopg
does. Parameters stay parameters: a payload is neither in the server's log of statements nor in pg_stat_activity.
"""

from __future__ import annotations

import selectors
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from todoku.core.errors import StoreError
from todoku.store.failpoint import reach
from todoku.store.sql import Row, Statement, numbered_parameters, restyle

WARM: Final = 5
"""Runs of a statement that a connection makes in three trips before it prepares it, as psycopg does itself. A process
may publish once and end. What a worker runs it runs again, so it prepares at once (`warm=0`): to plan a claim takes as
long as to claim a hundred deliveries."""

_Names = tuple[bytes, bytes, bytes, bytes]
"""The names under which begin, settings, statement and commit are prepared."""

_SELECTOR: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)

Send = Callable[[], object]
Adapt = Callable[[object], object]
"""Turns a parameter of a query into what its text form is made of."""


class Unprepared(Exception):
    """Nothing was done: the statement is not prepared on this connection, or the connection is broken."""


class SingleTrip:
    """Transactions of one statement each, all with the same settings.

    They run on connections that keep what was prepared on them: not behind a pooler of transactions.
    """

    def __init__(
        self, begin: str, settings: Mapping[str, str], queries: Mapping[str, str], adapt: Adapt, *, warm: int = WARM
    ) -> None:
        self._begin = begin
        self._warm = warm
        calls = [f"set_config('{name}', '{value}', true)" for name, value in settings.items()]
        self._settings = f"select {', '.join(calls)}"
        self.queries = queries
        self.adapt = adapt
        self.is_possible = psycopg.Pipeline.is_supported()
        """False: libpq has no pipeline, or a pooler was seen. Then nothing is sent this way again."""

    def check(self, connection: psycopg.Connection[Any], text: str) -> None:
        """Raises Unprepared unless the statement may be sent: it is prepared here, and the connection is not broken.

        A whole transaction must not be sent again after the connection broke, so a broken one is to be seen before.
        """
        if connection.closed or (memory := _memory(connection)).is_readable():
            raise Unprepared
        if (self._settings, text) in memory.prepared:
            return
        memory.runs[text] += 1
        if memory.runs[text] <= self._warm or not self._prepare(connection, text):
            raise Unprepared

    def run(self, connection: psycopg.Connection[Any], text: str, values: Mapping[str, object]) -> list[Row]:
        """Runs the statement in a transaction of its own, commits, and returns its rows.

        Unprepared: psycopg has dropped what was prepared, as it does after a rollback. Any other error means that it
        was rolled back; but after the connection broke nobody knows.
        """
        memory = _memory(connection)
        begin, settings, statement, commit = memory.prepared[self._settings, text]
        given = [_encoded(values[place]) for place in numbered_parameters(text)]
        send = connection.pgconn.send_query_prepared
        try:
            results = _exchange(
                connection,
                partial(send, begin, None),
                partial(send, settings, None),
                partial(send, statement, given, result_format=Format.BINARY),
                partial(send, commit, None),
            )
        except errors.InvalidSqlStatementName:
            memory.prepared.clear()
            raise Unprepared from None
        found = results[2]
        if not found.ntuples:
            return []
        loader = Transformer(connection)
        loader.set_pgresult(found)
        return loader.load_rows(0, found.ntuples, tuple)

    def _prepare(self, connection: psycopg.Connection[Any], text: str) -> bool:
        """Prepares a statement, unless a pooler answers: it may give the next transaction another server process.

        That takes locks, so it is done in a transaction with its settings.
        """
        ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
        if pid != connection.info.backend_pid:
            self.is_possible = False
            return False
        pgconn, memory = connection.pgconn, _memory(connection)
        memory.number += 1  # what an attempt that failed has prepared keeps its names
        begin, settings, statement, commit = names = _names(memory.number)
        _exchange(
            connection,
            partial(pgconn.send_prepare, begin, self._begin.encode()),
            partial(pgconn.send_prepare, settings, self._settings.encode()),
            partial(pgconn.send_prepare, commit, b"commit"),
        )
        _exchange(  # by itself: in one pipeline with the above, it would be too late to set the isolation level
            connection,
            partial(pgconn.send_query_prepared, begin, None),
            partial(pgconn.send_query_prepared, settings, None),
            partial(pgconn.send_prepare, statement, restyle(text, "dollar").encode()),
            partial(pgconn.send_query_prepared, commit, None),
        )
        memory.prepared[self._settings, text] = names
        return True


class LoneTx:
    """A transaction that is sent with its one statement. Raises Unprepared if it cannot be sent so."""

    def __init__(self, trip: SingleTrip, connection: psycopg.Connection[Any], operation: str) -> None:
        self._trip = trip
        self._connection = connection
        self._operation = operation
        self._is_over = False

    def rows(self, query: str, /, **values: object) -> list[Any]:
        """Runs a named query, and commits."""
        adapt = self._trip.adapt
        return self._run(self._trip.queries[query], {name: adapt(value) for name, value in values.items()})

    def statement(self, statement: Statement) -> list[Row]:
        """Runs a statement that was built, and commits."""
        return self._run(statement.sql, cast("Mapping[str, object]", statement.values))

    def _run(self, text: str, values: Mapping[str, object]) -> list[Row]:
        if self._is_over:
            raise StoreError("a statement followed one that was said to be alone", hint="a bug: please report it")
        self._trip.check(self._connection, text)
        reach(f"{self._operation}.before_commit")
        rows = self._trip.run(self._connection, text, values)
        self._is_over = True
        reach(f"{self._operation}.after_commit")
        return rows


class _Memory:
    """What was prepared on one connection."""

    def __init__(self, descriptor: int) -> None:
        self.runs: Counter[str] = Counter()
        self.number = 0
        self.prepared: dict[tuple[str, str], _Names] = {}
        """(settings, statement) to the names of its four parts."""
        self._selector = _SELECTOR()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def is_readable(self) -> bool:
        """Whether the server has sent something unasked: the end of the connection, or a notice."""
        return bool(self._selector.select(0))


def _memory(connection: psycopg.Connection[Any]) -> _Memory:
    memory = connection.__dict__.get("todoku_memory")
    if memory is None:
        memory = connection.__dict__["todoku_memory"] = _Memory(connection.fileno())
    return cast("_Memory", memory)


def _names(number: int) -> _Names:
    """Names of prepared statements, beside those of psycopg."""
    stem = f"todoku_{number}_".encode()
    return stem + b"begin", stem + b"set", stem + b"run", stem + b"commit"


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


def _encoded(value: object) -> bytes | None:
    """A parameter in the server's text form. Its type follows from the statement, which casts or compares it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, list):
        return ("{" + ",".join([_quoted(item) for item in value]) + "}").encode()
    return str(value).encode()  # a text, a number or a UUID: bytes are in no statement that is sent so


def _quoted(item: str) -> str:
    """A text as an item of an array."""
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
