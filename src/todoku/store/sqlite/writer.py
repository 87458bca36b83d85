"""The one thread of this process that writes to a SQLite file.

SQLite has one write lock. Threads that compete for it would poll and sleep; a queue in front of one writer thread is
fair and costs a hand-over. Against other processes, BEGIN IMMEDIATE is retried with random waits, and a writer that
meets others leaves the lock to them between two transactions.
"""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet

from todoku.core.errors import DatabaseBusy, MixedSQLite, UnsafeJournal
from todoku.store.failpoint import reach
from todoku.store.private_files import make_private

# ------------------------------------------------------------
# Makes sure that only one SQLite library of this process opens a file.
#
# POSIX locks do not work between two libraries in one process: with both on the same file, acknowledged rows are lost,
# and integrity_check finds nothing wrong (H26). So todoku uses the standard library's sqlite3, as user code does, and
# refuses a file that another library of this process has open.

_OTHER_LIBRARIES = ("apsw", "pysqlite3", "sqlcipher3", "pysqlcipher3", "libsql", "libsql_experimental")

_WAL_SAFE_FROM = (3, 51, 3)
_WAL_SAFE_LINES = ((3, 50, 7), (3, 44, 6))
"""Other builds lose acknowledged writes when two connections write and checkpoint at once; the fix was backported to
these release lines."""


def wal_is_safe(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether this build of SQLite is free of the WAL-reset bug."""
    return version >= _WAL_SAFE_FROM or any(version[:2] == fixed[:2] and version >= fixed for fixed in _WAL_SAFE_LINES)


def refuse_other_libraries(path: str) -> None:
    """Raises MixedSQLite if another SQLite library of this process has the file at `path` open."""
    for library in _OTHER_LIBRARIES:
        if library in sys.modules and any(same_file(path, other) for other in _open_files(library)):
            raise MixedSQLite(
                f"{library} has {path} open in this process, and todoku would open it through sqlite3: "
                "two SQLite libraries on one file lose acknowledged writes",
                hint=f"use sqlite3 for this file, or run todoku in a process without {library}",
            )


def _open_files(library: str) -> Iterator[str]:
    if library == "apsw":
        for connection in sys.modules["apsw"].connections():
            yield from filter(None, map(connection.db_filename, connection.db_names()))
        return
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind.__name__ == "Connection" and kind.__module__.split(".")[0] == library:
            yield from (row[2] for row in candidate.execute("pragma database_list").fetchall())


def same_file(path: str, other: str) -> bool:
    """Whether both paths are the same existing file."""
    try:
        return Path(path).samefile(other)
    except OSError:
        return False


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

_writers: dict[tuple[int, str], Writer] = {}
_writers_lock = threading.RLock()
_transactions: WeakSet[threading.Lock] = WeakSet()


def transaction_lock() -> threading.Lock:
    """Returns a lock that a connection must hold during its transactions: a fork waits for it.

    SQLite stores in memory which locks this process has. A child forked during a transaction inherits this memory but
    not the locks, and would find the file locked forever.
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


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_held.close, after_in_child=_held.close)


def connect(path: str, *, timeout: float, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Opens a connection that acknowledges a commit only when it is on disk; `execute_waiting` waits for locks.

    A missing file is created for its owner alone; SQLite gives its journals the same mode.
    """
    refuse_other_libraries(path)
    with suppress(OSError):  # then sqlite3.connect raises the error that callers expect
        make_private(path)
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256, factory=factory
    )
    try:
        for pragma in ("synchronous = full", "mmap_size = 0", "cache_size = -65536"):  # these read the schema
            execute_waiting(connection, f"pragma {pragma}", timeout=timeout)
    except BaseException:
        connection.close()
        raise
    return connection


_FIRST_WAIT: Final = 0.0005
_LONGEST_WAIT: Final = 0.001
"""Seconds between two attempts to get the lock, at most: busy writers have it nearly always, and a waiter that asked
every 50 ms got it after 5 to 9 s. An attempt takes some 50 µs of processor time."""

_GAP: Final = 0.0012
"""Seconds for which a writer leaves the lock to other processes between two transactions, if it had to wait for one of
them lately. It is longer than the longest wait, so whoever waits finds the lock free."""

_LATELY: Final = 0.1


def execute_waiting(
    connection: sqlite3.Connection, sql: str, *, timeout: float, on_wait: Callable[[], None] | None = None
) -> list[Any]:
    """Executes `sql` (BEGIN, COMMIT, a pragma) and waits for other processes; DatabaseBusy after `timeout` seconds.

    The waits are random: with equal waits two processes that collide once would collide again and again. `on_wait` is
    called before each of them.
    """
    deadline = time.monotonic() + timeout
    longest = _FIRST_WAIT
    while True:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() >= deadline:
                raise DatabaseBusy(
                    f"another connection has held the database lock for {timeout:.0f} s",
                    hint="if this thread has a transaction open, pass tx= to join it; else end the long transaction",
                ) from error
            if on_wait is not None:
                on_wait()
            time.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - a wait, not a secret
            longest = min(longest * 2, _LONGEST_WAIT)


def set_journal(connection: sqlite3.Connection, *, wal: bool | None, timeout: float) -> str:
    """Sets the journal mode that is safe in this build (or as `wal` demands). UnsafeJournal: it stays unsafe."""
    wanted = "wal" if (wal_is_safe() if wal is None else wal) else "truncate"
    ((current,),) = execute_waiting(connection, "pragma journal_mode", timeout=timeout)
    if current != wanted:
        try:
            execute_waiting(connection, f"pragma journal_mode = {wanted}", timeout=timeout)
        except DatabaseBusy:
            if current != "wal":  # in WAL, another open connection prevents the change
                raise
        ((current,),) = execute_waiting(connection, "pragma journal_mode", timeout=timeout)
    if current == "wal" and wanted != "wal":
        raise UnsafeJournal(
            f"the file is in WAL mode, in which SQLite {sqlite3.sqlite_version} can lose acknowledged writes",
            hint="close other connections so that it can be changed, use SQLite ≥ 3.51.3, or set TODOKU_SQLITE_WAL=1",
        )
    return str(current)


class Writer:
    """Runs functions one after the other, each in its own transaction."""

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
        self._waited_at = self._ended_at = float("-inf")
        self._transaction = transaction_lock()
        self._thread = threading.Thread(target=self._run, name=f"todoku-writer:{Path(path).name}", daemon=True)
        self._thread.start()

    def write(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction and commits it. Returns its result; raises its error."""
        future: Future[T] = Future()
        self._queue.put((operation, work, future))
        return future.result()

    def stop(self) -> None:
        """Finishes the queued work, then closes the connection."""
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
        self._leave_gap()
        execute_waiting(connection, "begin immediate", timeout=self._timeout, on_wait=self._note_wait)
        try:
            result = work(connection)
            reach(f"{operation}.before_commit")
            execute_waiting(connection, "commit", timeout=self._timeout)
            reach(f"{operation}.after_commit")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("rollback")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                # A connection opened while the file was read-only stays read-only: a new one may write.
                self._connection = connect(self._path, timeout=self._timeout)
                connection.close()
            raise
        finally:
            self._ended_at = time.monotonic()
        return result

    def _note_wait(self) -> None:
        self._waited_at = time.monotonic()

    def _leave_gap(self) -> None:
        """Lets another process have the lock if it may be waiting for it: its attempts would miss a shorter gap."""
        now = time.monotonic()
        left = self._ended_at + _GAP - now
        if left > 0 and now - self._waited_at < _LATELY:
            time.sleep(left)


def acquire_writer(path: str, user: object, *, wal: bool | None, timeout: float) -> Writer:
    """Returns the writer of this process for the file: one, for all stores and threads."""
    with _writers_lock:
        key = (os.getpid(), path)  # a thread does not survive a fork, so a child starts its own
        if key not in _writers:
            _writers[key] = Writer(path, wal=wal, timeout=timeout)
        _writers[key].users.add(user)
        return _writers[key]


def release_writer(path: str, user: object) -> None:
    """Stops the file's writer when its last user has released it."""
    with _writers_lock:
        writer = _writers.get((os.getpid(), path))
        if writer is None:
            return
        writer.users.discard(user)
        if writer.users:
            return
        del _writers[os.getpid(), path]
    writer.stop()
