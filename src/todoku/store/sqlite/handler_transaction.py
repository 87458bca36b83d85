"""The transaction of a transactional handler on SQLite: it holds the only write lock, so its time is limited."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from todoku.core.errors import DatabaseBusy
from todoku.store.database import HANDLER, Tx, ended_by_handler
from todoku.store.failpoint import reach
from todoku.store.sqlite.writer import connect, execute_waiting, transaction_lock


class SqliteHandlerConnection(sqlite3.Connection):
    """A connection on which only todoku ends the transaction: commit and rollback raise.

    `lent`: SQLAlchemy uses it; then both do nothing.
    """

    lent = False

    def commit(self) -> None:
        if not self.lent:
            raise ended_by_handler()

    def rollback(self) -> None:
        if not self.lent:
            raise ended_by_handler()


class SqliteHandlerTransaction:
    """An open transaction on a separate connection."""

    def __init__(self, connection: sqlite3.Connection, tx: Tx, timeout: float) -> None:
        self.connection = connection
        self.tx = tx
        self._timeout = timeout
        self.committed = False

    def check(self) -> None:
        try:
            self.connection.execute(f"release savepoint {HANDLER}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise ended_by_handler() from error

    def commit(self) -> None:
        reach("transact.before_commit")
        execute_waiting(self.connection, "commit", timeout=self._timeout)
        self.committed = True
        reach("transact.after_commit")


@contextmanager
def open_transaction(
    path: str, make_tx: Callable[[sqlite3.Connection], Tx], *, timeout: float, limit: float
) -> Iterator[SqliteHandlerTransaction]:
    """Begins a write transaction. After `limit` seconds it is rolled back, because it blocks all other writers."""
    connection = connect(path, timeout=timeout, factory=SqliteHandlerConnection)
    lock, over, ended, ending = transaction_lock(), threading.Event(), threading.Event(), threading.Lock()

    def roll_back_now() -> None:
        with ending:  # a timer that has fired cannot be cancelled: the connection may be closed
            if not ended.is_set():
                over.set()
                connection.set_authorizer(_deny)  # every further statement fails, even if prepared before
                connection.interrupt()
                with suppress(sqlite3.OperationalError):  # nothing to roll back: it was just committed
                    connection.execute("rollback")  # now: a handler that computes may return much later

    timer = threading.Timer(limit, roll_back_now)
    timer.daemon = True
    try:
        with lock:
            execute_waiting(connection, "begin immediate", timeout=timeout)
            connection.execute(f"savepoint {HANDLER}")
            timer.start()
            one = SqliteHandlerTransaction(connection, make_tx(connection), timeout)
            try:
                yield one
            except sqlite3.Error as error:
                if over.is_set():
                    raise _too_long(limit) from error
                raise
            if over.is_set() and not one.committed:
                raise _too_long(limit)
    finally:
        timer.cancel()
        with ending:
            ended.set()
        connection.set_authorizer(None)
        if connection.in_transaction:
            connection.execute("rollback")
        connection.close()


def _deny(action: int, what: str | None, *_: object) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and what == "ROLLBACK"
    return sqlite3.SQLITE_OK if ends else sqlite3.SQLITE_DENY


def _too_long(limit: float) -> DatabaseBusy:
    return DatabaseBusy(
        f"a transactional handler held the only write lock for {limit:g} s",
        hint="shorten the handler, or raise lease_sec: a handler may hold the lock for a quarter of the lease",
    )
