"""PostgreSQL through psycopg 3 and a connection pool.

Sessions have no state: settings are `SET LOCAL` and locks end with the transaction, so that PgBouncer in transaction
mode works.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from todoku.core.settings import Settings
from todoku.store.database import (
    DialectName,
    Facts,
    HandlerTransaction,
    Listener,
    Migrated,
    Slice,
    Tx,
    slice_parameters,
)
from todoku.store.failpoint import reach
from todoku.store.migrate import checked_plan, migrations
from todoku.store.postgres import scratch
from todoku.store.postgres.bulk import PostgresBulk
from todoku.store.postgres.error_translation import refuse_encoding, translate_errors
from todoku.store.postgres.handler_transaction import PostgresHandlerConnection, PostgresHandlerTransaction, begin
from todoku.store.postgres.notices import AWAITED, ENDS, LIMITED, WORK, PostgresListener
from todoku.store.postgres.planner_settings import NO_JIT, PIN_PLANS, PINNED, PLAN_ONCE, PLANNED, READING, set_local
from todoku.store.postgres.single_trip import LoneTx, SingleTrip, Unprepared
from todoku.store.postgres.transaction import PostgresTx, adapt
from todoku.store.sql import Steps, load, quote, restyle
from todoku.store.table import Bulk

T = TypeVar("T")
_PACKAGE = "todoku.store.postgres"
_BEGIN: Final = "begin isolation level read committed"
"""Overrides the database's default: each statement must see what was committed while the previous one waited."""

_NO_TIMEOUTS: Final = (
    "set local lock_timeout = 0; set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"
)
"""For operations of any duration: overrides the timeouts of the role or the database."""

_CONNECT_TIMEOUT: Final = 5.0
"""Seconds that a handler waits for a connection before its attempt is released."""
_PLANNED_ONCE = frozenset({"claim", "claim_suspect", "claim_lanes", "claim_gates", "settle", "release", "step"})


class PostgresDatabase:
    """A PostgreSQL database, and the schema of todoku's tables in it."""

    dialect: DialectName = "postgresql"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        patience = f"{settings.statement_timeout_sec * 1000:.0f}"
        limits = {
            "lock_timeout": f"{settings.lock_timeout_sec * 1000:.0f}",
            "statement_timeout": patience,
            # If the network fails in a transaction, its locks must not be held until TCP times out.
            "idle_in_transaction_session_timeout": patience,
        }
        self._begin = f"{_BEGIN}; {set_local(limits | NO_JIT)}"
        self.queries = load(_PACKAGE, settings.schema)
        ours = limits | NO_JIT | PINNED
        self._trip = SingleTrip(_BEGIN, ours, self.queries, adapt)
        self._planned_trip = SingleTrip(_BEGIN, ours | PLANNED, self.queries, adapt, warm=0)
        self._reading_trip = SingleTrip(_BEGIN, ours | PLANNED | READING, self.queries, adapt, warm=0)
        self._restyled = {name: restyle(query, "pyformat") for name, query in self.queries.items()}
        self._opening = threading.Lock()
        self._pool: ConnectionPool[PostgresHandlerConnection] | None = None
        self._pid = os.getpid()

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        plans = f"{PIN_PLANS}; {PLAN_ONCE}" if operation in _PLANNED_ONCE else PIN_PLANS
        return self._transaction(operation, work, f"{self._begin}; {plans}")

    def write_alone(self, operation: str, work: Callable[[Tx], T]) -> T:
        trip = self._planned_trip if operation in _PLANNED_ONCE else self._trip
        return self._alone(trip, operation, work, partial(self.write, operation, work))

    def read_alone(self, work: Callable[[Tx], T]) -> T:
        return self._alone(self._reading_trip, "read", work, partial(self.read, work))

    def _alone(self, trip: SingleTrip, operation: str, work: Callable[[Tx], T], otherwise: Callable[[], T]) -> T:
        if self._settings.prepare_statements and trip.is_possible:
            with suppress(Unprepared), translate_errors(), self._pooled_connection() as connection:
                return work(LoneTx(trip, connection, operation))
        return otherwise()

    def read(self, work: Callable[[Tx], T], *, pinned: bool = True) -> T:
        plans = f"{PIN_PLANS}; " if pinned else ""
        return self._transaction("read", work, f"{self._begin}; {plans}{set_local(READING)}")

    @contextmanager
    def open_transaction(self, limit: float) -> Iterator[HandlerTransaction]:
        with translate_errors(), self._handler_connection() as connection, begin(connection, limit):
            yield PostgresHandlerTransaction(connection, PostgresTx(connection, self._restyled))

    @contextmanager
    def _handler_connection(self) -> Iterator[PostgresHandlerConnection]:
        """A connection for one handler; its session settings do not leak to others.

        It is new, so that handlers never take the last pooled connection from the settler. If the server has no more
        connections, it is borrowed from the pool and reset afterwards.
        """
        try:
            connection = PostgresHandlerConnection.connect(self._settings.database, **self._options())
        except psycopg.OperationalError:
            with self._open_pool().connection(timeout=_CONNECT_TIMEOUT) as borrowed:
                try:
                    yield borrowed
                finally:
                    _reset_session(borrowed)
        else:
            with connection:
                yield connection

    @contextmanager
    def bulk(self) -> Iterator[Bulk]:
        with (
            translate_errors(),
            psycopg.connect(self._settings.database, connect_timeout=10, **self._options()) as connection,
        ):
            yield PostgresBulk(connection, PostgresTx(connection, self._restyled), self._settings.schema)

    def listen(
        self,
        notice: Callable[[], None],
        *,
        awaited: Callable[[str], None],
        limited: Callable[[], None],
        is_busy: Callable[[], bool],  # noqa: ARG002 - a busy worker's row says so
    ) -> Listener:
        def heard(payload: str) -> None:
            if payload.startswith(AWAITED):
                awaited(payload.removeprefix(AWAITED))
            elif payload == LIMITED:
                limited()
            else:
                notice()

        return PostgresListener(self._settings.database, WORK, heard)

    def listen_for_ends(self, ended: Callable[[str], None]) -> Listener | None:
        return PostgresListener(self._settings.database, ENDS, ended)

    def announce_wait(self, message_id: str) -> None:
        self.write("announce", lambda tx: tx.rows("notify", channel=WORK, payloads=[AWAITED + message_id]))

    def announce_limits(self, tx: Tx) -> None:
        tx.rows("notify", channel=WORK, payloads=[LIMITED])

    def give_notice(self, tx: Tx, message_ids: Sequence[str]) -> None:
        tx.rows("notify", channel=ENDS, payloads=list(message_ids))

    def snapshot(self, work: Callable[[Tx], T]) -> T:
        return self._transaction("read", work, f"begin isolation level repeatable read, read only; {_NO_TIMEOUTS}")

    def now(self) -> int | None:
        return None

    def check_tx(self) -> Steps[None]:
        yield from ()

    def claim(self, tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int) -> list[Any]:
        return tx.rows("claim", worker=worker, most=limit, **slice_parameters(slices))

    def migrate(self) -> Migrated:
        return self._transaction("migrate", self._migrate, f"{_BEGIN}; {_NO_TIMEOUTS}")

    def describe(self) -> str:
        def work(tx: Tx) -> str:
            ((version, commit),) = tx.rows("server")
            return f"PostgreSQL {version}, synchronous_commit {commit}"

        return self.read(work)

    def facts(self) -> Facts:
        def work(tx: Tx) -> Facts:
            ((used, most, read_only, commit, fsync, pid, encoding, nowhere, schemas),) = tx.rows("server_facts")
            return Facts(
                describe=describe,
                latest=migrations(_PACKAGE)[-1].version,
                durable=commit != "off" and fsync == "on",
                writable=not read_only,
                encoding=encoding,
                no_schema=nowhere and self._settings.schema is None,
                schemas=tuple(schemas) if self._settings.schema is None else (),
                connections_used=used,
                connections_max=most,
                pooled=cast("PostgresTx", tx).connection.info.backend_pid != pid,
            )

        describe = self.describe()
        return self.read(work)

    def close(self) -> None:
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    def set_clock(self, at: float | None) -> None:
        self._define(scratch.stop_clock_sql(at, self._settings.schema))

    def empty(self) -> None:
        self._define(scratch.truncate_sql(self._settings.schema))

    def remove(self) -> None:
        self._define(scratch.drop_schema_sql(self._settings.schema))
        self.close()

    def _define(self, statement: str) -> None:
        def work(tx: Tx) -> None:
            cast("PostgresTx", tx).connection.execute(cast("sql.SQL", statement))

        self._transaction("migrate", work, f"{_BEGIN}; {_NO_TIMEOUTS}")

    def _transaction(self, operation: str, work: Callable[[Tx], T], begin: str) -> T:
        with translate_errors(), self._begin_on_connection(begin) as connection:
            tx = PostgresTx(connection, self._restyled, prepare=True if operation in _PLANNED_ONCE else None)
            try:
                result = work(tx)
                reach(f"{operation}.before_commit")
                connection.execute("commit")
                reach(f"{operation}.after_commit")
            except BaseException as error:
                tx.ahead.abandon(error)
                if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.execute("rollback")
                raise
            return result

    def _options(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "prepare_threshold": 5 if self._settings.prepare_statements else None,
            "application_name": "todoku",
            "client_encoding": "utf8",  # overrides the role's: every text must be encodable
        }

    @contextmanager
    def _pooled_connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of the pool. One that was closed meanwhile does not go back."""
        pool = self._open_pool()
        # The connection that was used last is given out first: its server process has plans, catalogs and pages at
        # hand, and the others become idle. The pool gives out the first of its deque and appends what comes back.
        idle = getattr(pool, "_pool", None)  # psycopg_pool 3.2 and 3.3; without it they take turns
        if isinstance(idle, deque):
            idle.rotate(1)
        connection = pool.getconn(timeout=self._settings.statement_timeout_sec)
        try:
            yield connection
        finally:
            pool.putconn(connection)

    @contextmanager
    def _begin_on_connection(self, begin: str) -> Iterator[psycopg.Connection[Any]]:
        """Begins a transaction on a pooled connection. A connection that broke while idle is replaced.

        The pool's own check would cost a round trip each time, and it sleeps between two tries: if the pool was closed
        meanwhile, it never returned.
        """
        for tries_left in reversed(range(self._settings.connections + 1)):
            with self._pooled_connection() as connection:
                try:
                    connection.execute(cast("sql.SQL", begin))
                except psycopg.OperationalError:
                    connection.close()
                    if not tries_left:
                        raise
                    continue
                except BaseException:
                    connection.close()
                    raise
                yield connection
                return

    def _open_pool(self) -> ConnectionPool[PostgresHandlerConnection]:
        with self._opening:
            if self._pool is None or self._pid != os.getpid():  # a connection must not be used after a fork
                self._pid = os.getpid()
                with psycopg.connect(self._settings.database, connect_timeout=10):
                    pass  # fails at once if there is no server; the pool would retry for half a minute
                self._pool = ConnectionPool(
                    self._settings.database,
                    min_size=0,
                    max_size=self._settings.connections,
                    open=True,
                    connection_class=PostgresHandlerConnection,
                    kwargs=self._options(),
                    # Idle connections are closed: the server has a limited number, and other clients need them.
                    max_idle=5.0,
                    # The pool retries less and less often, and its callers would wait for that.
                    reconnect_timeout=2.0,
                    reconnect_failed=self._give_up,
                )
            return self._pool

    def _give_up(self, pool: ConnectionPool[Any]) -> None:
        """Closes a pool that has no connection and gets none: waiting callers fail, and the next call connects anew."""
        if pool.get_stats().get("pool_size", 0) > 0:
            return
        with self._opening:
            if self._pool is pool:
                self._pool = None
        threading.Thread(target=pool.close, daemon=True).start()  # the caller is one of the pool's threads

    # ------------------------------------------------------------------------------------- migrations

    def _migrate(self, tx: Tx) -> Migrated:
        connection = cast("PostgresTx", tx).connection
        ((encoding,),) = connection.execute("select current_setting('server_encoding')").fetchall()
        refuse_encoding(encoding)
        # A transaction lock: PgBouncer would leave a session lock behind.
        connection.execute("select pg_advisory_xact_lock(hashtext('todoku migrate'))")
        for line in self._preamble():
            connection.execute(cast("sql.SQL", line))
        applied = connection.execute("select version, checksum from todoku_migration order by version").fetchall()
        plan = checked_plan(_PACKAGE, dict(applied))
        for step in plan:
            connection.execute(cast("sql.SQL", step.sql))
            connection.execute(
                "insert into todoku_migration (version, name, checksum, applied_at) values (%s, %s, %s, now())",
                (step.version, step.name, step.checksum),
            )
        connection.execute("select todoku_history_ahead(7)")
        return Migrated(tuple(step.version for step in plan), len(applied) + len(plan))

    def _preamble(self) -> list[str]:
        schema = self._settings.schema
        lines = [] if schema is None else [f"create schema if not exists {quote(schema)}"]
        lines += [f"set local search_path = {quote(schema)}"] if schema is not None else []
        return [*lines, MIGRATION_TABLE]

    def migration_script(self) -> str:
        lines = ["begin;", *(f"{line};" for line in self._preamble())]
        for step in migrations(_PACKAGE):
            record = f"({step.version}, '{step.name}', '{step.checksum}', now())"
            lines += [
                step.sql,
                f"insert into todoku_migration (version, name, checksum, applied_at) values {record};",
            ]
        return "\n".join([*lines, "select todoku_history_ahead(7);", "commit;", ""])


MIGRATION_TABLE = """create table if not exists todoku_migration (
    version integer primary key, name text not null, checksum text not null, applied_at timestamptz not null)"""


def _reset_session(connection: PostgresHandlerConnection) -> None:
    """Resets a borrowed connection. It is not closed: the server has no more, another client would take it."""
    connection.lent = False
    if not connection.closed:
        connection.execute(_RESET_SESSION)


_RESET_SESSION: Final = (
    "set session authorization default; reset all; close all; unlisten *; select pg_advisory_unlock_all();"
    " discard temp; discard sequences"
)
"""DISCARD ALL without prepared statements: psycopg does not always notice that they were dropped."""
