"""A handler's own transaction on SQLite: it holds the only write lock, so its time is short."""

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
    """A connection whose transaction is todoku's to end. `lent`: SQLAlchemy has it, and may believe it does."""

    lent = False

    def commit(self) -> None:
        if not self.lent:
            raise ended_by_handler()

    def rollback(self) -> None:
        if not self.lent:
            raise ended_by_handler()


class SqliteHandlerTransaction:
    """An open transaction on a connection of its own."""

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
    """Begin a transaction that writes; past `limit` it is taken away, because nobody else can write meanwhile."""
    connection = connect(path, timeout=timeout, factory=SqliteHandlerConnection)
    lock, over, ended, ending = transaction_lock(), threading.Event(), threading.Event(), threading.Lock()

    def take_away() -> None:
        with ending:  # a timer that has gone off cannot be cancelled: the connection may be closed by now
            if not ended.is_set():
                over.set()
                connection.set_authorizer(_deny)  # every statement from here on fails, also one prepared before
                connection.interrupt()
                with suppress(sqlite3.OperationalError):  # there is nothing to roll back: it has just been committed
                    connection.execute("rollback")  # at once, and not when a handler that thinks comes back

    timer = threading.Timer(limit, take_away)
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
        hint="let it do less, or raise lease_sec: a handler may hold it for a quarter of the lease",
    )
