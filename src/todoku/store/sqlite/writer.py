"""The one thread of this process that writes to a SQLite file.

SQLite has one write lock. Threads that fought for it would wait in turns of sleeping; queueing for a thread that
holds it costs a hand-over and is fair. Other processes are met with BEGIN IMMEDIATE and jittered waits.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from todoku.core.errors import DatabaseBusy, UnsafeJournal
from todoku.store.failpoint import reach
from todoku.store.private_files import make_private
from todoku.store.sqlite.library import refuse_other_libraries, wal_is_safe

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

_writers: dict[tuple[int, str], Writer] = {}
_writers_lock = threading.RLock()
_transactions: WeakSet[threading.Lock] = WeakSet()


def transaction_lock() -> threading.Lock:
    """A lock for a connection, to be held during its transactions: a fork waits for it.

    SQLite remembers in memory what this process has locked. A child forked in a transaction inherits the memory but
    not the lock, and would find the file locked for ever.
    """
    lock = threading.Lock()
    with _writers_lock:
        _transactions.add(lock)
    return lock


_held = ExitStack()


def _before_fork() -> None:
    _held.enter_context(_writers_lock)
    for lock in list(_transactions):
        _held.enter_context(lock)


os.register_at_fork(before=_before_fork, after_in_parent=_held.close, after_in_child=_held.close)


def connect(path: str, *, timeout: float, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection that acknowledges only what is on disk, and waits for locks by our own rules.

    A file that is not there is made for its owner alone; SQLite gives its journals the same mode.
    """
    refuse_other_libraries(path)
    with suppress(OSError):  # SQLite says what is wrong, in the words that callers know
        make_private(path)
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256, factory=factory
    )
    try:
        for pragma in ("synchronous = full", "mmap_size = 0", "cache_size = -65536"):  # they read the schema: may wait
            execute_waiting(connection, f"pragma {pragma}", timeout=timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def execute_waiting(connection: sqlite3.Connection, sql: str, *, timeout: float) -> list[Any]:
    """Execute `sql` (BEGIN, COMMIT, a pragma), waiting for other processes; DatabaseBusy when they take too long.

    The waits are random: equal ones would make two processes that met once meet for ever. And they stay short: busy
    callers take the lock again as soon as they let go of it, and who looks every 50 ms found it free after 5 to 9 s.
    """
    deadline = time.monotonic() + timeout
    longest = 0.001
    while True:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() >= deadline:
                raise DatabaseBusy(
                    f"another connection has kept the database locked for {timeout:.0f} s",
                    hint="if this thread has a transaction open, pass tx= to join it; else end the long transaction",
                ) from error
            time.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - a wait, not a secret
            longest = min(longest * 2, 0.002)


def set_journal(connection: sqlite3.Connection, *, wal: bool | None, timeout: float) -> str:
    """Choose the journal by the build (or as `wal` insists) and return it; raise if the file keeps an unsafe one."""
    wanted = "wal" if (wal_is_safe() if wal is None else wal) else "truncate"
    ((current,),) = execute_waiting(connection, "pragma journal_mode", timeout=timeout)
    if current != wanted:
        try:
            execute_waiting(connection, f"pragma journal_mode = {wanted}", timeout=timeout)
        except DatabaseBusy:
            if current != "wal":  # else another connection is open, and the file stays in it
                raise
        ((current,),) = execute_waiting(connection, "pragma journal_mode", timeout=timeout)
    if current == "wal" and wanted != "wal":
        raise UnsafeJournal(
            f"the file is in WAL mode, in which SQLite {sqlite3.sqlite_version} can lose acknowledged writes",
            hint="close other connections so that it can be changed, use SQLite ≥ 3.51.3, or set TODOKU_SQLITE_WAL=1",
        )
    return str(current)


class Writer:
    """Runs pieces of work one after the other, each in a transaction of its own."""

    def __init__(self, path: str, *, wal: bool | None, timeout: float) -> None:
        self.users: set[object] = set()
        self._path = path
        self._timeout = timeout
        self._queue: SimpleQueue[tuple[str, Work, Future[Any]] | None] = SimpleQueue()
        self._connection = connect(path, timeout=timeout)
        try:
            self.journal = set_journal(self._connection, wal=wal, timeout=timeout)
        except BaseException:
            self._connection.close()
            raise
        self._transaction = transaction_lock()
        self._thread = threading.Thread(target=self._run, name=f"todoku-writer:{Path(path).name}", daemon=True)
        self._thread.start()

    def write(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction and commit it; returns what it returned, raises what it raised."""
        future: Future[T] = Future()
        self._queue.put((operation, work, future))
        return future.result()

    def stop(self) -> None:
        """Finish what is queued, then close the connection."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            operation, work, future = item
            try:
                with self._transaction:
                    result = self._transact(operation, work)
            except BaseException as error:  # noqa: BLE001 - the caller raises it, in its own thread
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, work, future
        self._connection.close()

    def _transact(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        refuse_other_libraries(self._path)
        connection = self._connection
        execute_waiting(connection, "begin immediate", timeout=self._timeout)
        try:
            result = work(connection)
            reach(f"{operation}.before_commit")
            execute_waiting(connection, "commit", timeout=self._timeout)
            reach(f"{operation}.after_commit")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("rollback")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                # Opened while the file could not be written, a connection stays so for ever: the next one may write.
                self._connection = connect(self._path, timeout=self._timeout)
                connection.close()
            raise
        return result


def acquire_writer(path: str, user: object, *, wal: bool | None, timeout: float) -> Writer:
    """The writer of this process for the file: one, however many stores are open on it, and threads opening them."""
    with _writers_lock:
        key = (os.getpid(), path)  # a thread does not survive a fork, so a child makes its own
        if key not in _writers:
            _writers[key] = Writer(path, wal=wal, timeout=timeout)
        _writers[key].users.add(user)
        return _writers[key]


def release_writer(path: str, user: object) -> None:
    """Stop the file's writer when its last user is gone."""
    with _writers_lock:
        writer = _writers.get((os.getpid(), path))
        if writer is None:
            return
        writer.users.discard(user)
        if writer.users:
            return
        del _writers[os.getpid(), path]
    writer.stop()
