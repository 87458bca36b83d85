"""The transaction of a transactional handler on PostgreSQL, on a separate connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus

from todoku.store.database import HANDLER, Tx, ended_by_handler
from todoku.store.failpoint import reach
from todoku.store.postgres.planner_settings import take_over


class PostgresHandlerConnection(psycopg.Connection[Any]):
    """A connection on which only todoku ends the transaction: while a handler has it, commit and rollback raise.

    `lent`: SQLAlchemy uses it; then both do nothing.
    """

    with_handler = lent = False

    def commit(self) -> None:
        if not self.with_handler:
            super().commit()
        elif not self.lent:
            raise ended_by_handler()

    def rollback(self) -> None:
        if not self.with_handler:
            super().rollback()
        elif not self.lent:
            raise ended_by_handler()


class PostgresHandlerTransaction:
    """An open transaction."""

    def __init__(self, connection: psycopg.Connection[Any], tx: Tx) -> None:
        self.connection = connection
        self.tx = tx
        self._give_back = ""

    def check(self) -> None:
        try:
            self._give_back = take_over(self.connection, f"release savepoint {HANDLER}")
        except (errors.InvalidSavepointSpecification, errors.NoActiveSqlTransaction) as error:
            raise ended_by_handler() from error

    def commit(self) -> None:
        reach("transact.before_commit")
        # Deferred constraints run in the commit, as a part of the handler's work: restore the handler's settings.
        self.connection.execute(cast("sql.SQL", f"{self._give_back}; commit"))
        reach("transact.after_commit")


@contextmanager
def begin(connection: PostgresHandlerConnection, limit: float) -> Iterator[None]:
    """Begins a transaction that the server ends when it is idle for `limit` seconds (H21)."""
    milliseconds = f"{max(limit, 0.1) * 1000:.0f}"
    # Read committed, regardless of the default: with an old snapshot the settle would miss later publishes to the lane.
    begin = (
        f"begin isolation level read committed; set local idle_in_transaction_session_timeout = {milliseconds};"
        f" set local lock_timeout = {milliseconds}; savepoint {HANDLER}"
    )
    connection.execute(cast("sql.SQL", begin))
    connection.with_handler = True
    try:
        yield
    finally:
        connection.with_handler = False
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.execute("rollback")
