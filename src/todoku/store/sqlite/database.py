"""SQLite through the standard library's sqlite3: one file, one writer thread and one reader connection."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from todoku.core.errors import (
    DatabaseUnavailable,
    DurabilityWarning,
    SchemaError,
    StoreError,
    UnknownDatabase,
    WrongDatabase,
)
from todoku.core.settings import Settings
from todoku.store.columns import EPOCH
from todoku.store.database import Bound, DialectName, Facts, HandlerTransaction, Listener, Migrated, Slice, Tx
from todoku.store.migrate import checked_plan, migrations
from todoku.store.private_files import find_shared
from todoku.store.sql import Row, Statement, Steps, load
from todoku.store.sqlite.bulk import bulk
from todoku.store.sqlite.file_watch import SqliteListener
from todoku.store.sqlite.handler_transaction import open_transaction
from todoku.store.sqlite.packed_rows import unpack
from todoku.store.sqlite.repeated_rows import execute_all
from todoku.store.sqlite.writer import (
    Writer,
    acquire_writer,
    connect,
    execute_waiting,
    refuse_other_libraries,
    release_writer,
    same_file,
    transaction_lock,
    wal_is_safe,
)
from todoku.store.table import Bulk

T = TypeVar("T")
_PACKAGE = "todoku.store.sqlite"
_OLDEST = (3, 37, 0)
_SEPARATOR = re.compile(r";\s*\n")
_MICROSECOND = timedelta(microseconds=1)
_FULL = 2
_NOT_DURABLE = (
    "a connection handed in as tx= has `pragma synchronous` below FULL: its commits, your rows and the message, "
    "can be lost when the power fails (execute `pragma synchronous = full` on it, or ignore this warning)"
)

MIGRATION_TABLE = """create table if not exists todoku_migration (
    version integer primary key, name text not null, checksum text not null, applied_at integer not null) strict"""


_stopped_clocks: dict[str, int] = {}
"""The clocks that tests have stopped: file to microseconds."""

_parent_connections: list[object] = []
"""Connections of the parent process before a fork. Referenced forever: garbage collection would close them."""


def wall_clock() -> int:
    """Microseconds since 1970. SQLite runs in this process, so this is the database's clock (I12)."""
    return time.time_ns() // 1000


class SqliteTx:
    """A transaction on a connection. A named query may have several statements, of which one returns rows."""

    def __init__(self, connection: sqlite3.Connection, queries: Mapping[str, Sequence[str]], now: int) -> None:
        self._connection = connection
        self._queries = queries
        self._now = now

    def rows(self, query: str, /, **values: Bound | Sequence[Mapping[str, Any]]) -> list[Any]:
        bound = {name: _adapt(value) for name, value in values.items()}
        bound["now"] = self._now
        rows: list[Any] = []
        for statement in self._queries[query]:
            cursor = self._connection.execute(statement, bound)
            if cursor.description is not None:
                rows = cursor.fetchall()
        return rows

    def statement(self, statement: Statement) -> list[Row]:
        if isinstance(statement.values, Mapping):
            return self._connection.execute(statement.sql, statement.values).fetchall()
        execute_all(self._connection, statement.sql, statement.values)
        return []


def _adapt(value: object) -> object:
    """Converts lists and documents to JSON text, times to microseconds, ids to text."""
    match value:
        case list() | tuple() | dict():
            return msgspec.json.encode(value).decode()
        case UUID():
            return str(value)
        case datetime():
            return (value - EPOCH) // _MICROSECOND
        case _:
            return value


class SqliteDatabase:
    """A SQLite file."""

    dialect: DialectName = "sqlite"

    def __init__(self, settings: Settings, *, clock: Callable[[], int] | None = None) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old", hint="todoku needs SQLite 3.37 or newer")
        self.path = file_path(settings.database)
        self._settings = settings
        self._timeout = max(settings.lock_timeout_sec, 5.0)
        self._clock = clock or self._now
        self.queries = load(_PACKAGE)
        self._scripts = {name: _SEPARATOR.split(query) for name, query in self.queries.items()}
        self._reading = transaction_lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: Writer | None = None
        self._pid = os.getpid()

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        def with_queries(connection: sqlite3.Connection) -> T:
            return work(SqliteTx(connection, self._scripts, self._clock()))

        with self._translate_errors():
            return self._open_writer().write(operation, with_queries)

    def write_alone(self, operation: str, work: Callable[[Tx], T]) -> T:
        return self.write(operation, work)

    def read_alone(self, work: Callable[[Tx], T]) -> T:
        return self.read(work)

    def read(self, work: Callable[[Tx], T], *, pinned: bool = True) -> T:  # noqa: ARG002  SQLite has no plans to pin
        with self._translate_errors():
            self._open_writer()  # before the lock: the fork handler takes both locks in this order
            with self._reading:
                connection = self._reader = self._reader or connect(self.path, timeout=self._timeout)
                connection.execute("begin")
                try:
                    # BEGIN takes no lock yet, and without WAL a commit blocks readers: wait here until it is done.
                    execute_waiting(connection, "select 1 from sqlite_schema limit 1", timeout=self._timeout)
                    return work(SqliteTx(connection, self._scripts, self._clock()))
                finally:
                    connection.execute("rollback")

    @contextmanager
    def open_transaction(self, limit: float) -> Iterator[HandlerTransaction]:
        def make_tx(connection: sqlite3.Connection) -> Tx:
            return SqliteTx(connection, self._scripts, self._clock())

        with self._translate_errors():
            self._open_writer()
            with open_transaction(self.path, make_tx, timeout=self._timeout, limit=limit) as one:
                yield one

    @contextmanager
    def bulk(self) -> Iterator[Bulk]:
        def make_tx(connection: sqlite3.Connection) -> Tx:
            return SqliteTx(connection, self._scripts, self._clock())

        with self._translate_errors(), bulk(self.path, make_tx, timeout=self._timeout) as one:
            yield one

    def listen(
        self,
        notice: Callable[[], None],
        *,
        awaited: Callable[[str], None],  # noqa: ARG002 - a file gives no such notices
        limited: Callable[[], None],  # noqa: ARG002
        is_busy: Callable[[], bool],
    ) -> Listener:
        with self._translate_errors():
            return SqliteListener(self.path, notice, is_busy, timeout=self._timeout)

    def listen_for_ends(self, ended: Callable[[str], None]) -> Listener | None:  # noqa: ARG002  a file gives no notices
        return None

    def announce_wait(self, message_id: str) -> None: ...

    def announce_limits(self, tx: Tx) -> None: ...

    def give_notice(self, tx: Tx, message_ids: Sequence[str]) -> None: ...

    def snapshot(self, work: Callable[[Tx], T]) -> T:
        return self.read(work)  # every SQLite transaction reads one snapshot

    def now(self) -> int | None:
        return self._clock()

    def check_tx(self) -> Steps[None]:
        refuse_other_libraries(self.path)
        files = {name: str(file) for _, name, file in (yield Statement("pragma database_list", {}))}
        if not same_file(self.path, files["main"]):
            raise WrongDatabase(
                f"tx= is a connection to {files['main'] or 'a database in memory'}, the App is on {self.path}",
                hint="the message must be in the same file as your rows: give the App the URL of that file",
            )
        ((level,),) = yield Statement("pragma main.synchronous", {})
        if cast("int", level) < _FULL:  # one location, so that the default filter shows it once
            warnings.warn(_NOT_DURABLE, DurabilityWarning, stacklevel=1)

    def describe(self) -> str:
        with self._translate_errors():
            journal = self._open_writer().journal
        note = "" if wal_is_safe() else " (WAL can lose acknowledged writes before SQLite 3.51.3)"
        return f"SQLite {sqlite3.sqlite_version}, journal {journal}{note}, synchronous full"

    def facts(self) -> Facts:
        folder = Path(self.path).parent
        return Facts(
            describe=self.describe(),
            latest=migrations(_PACKAGE)[-1].version,
            durable=True,
            writable=os.access(self.path, os.W_OK) and os.access(folder, os.W_OK),
            wal_safe=wal_is_safe(),
            free_bytes=shutil.disk_usage(folder).free,
            shared_files=find_shared(Path(f"{self.path}{ending}") for ending in _FILES),
        )

    def claim(self, tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int) -> list[Any]:
        rows: list[Any] = []
        for part in slices:
            if len(rows) >= limit:
                break
            ((packed,),) = tx.rows(
                "claim",
                worker=worker,
                queue=part.queue,
                destination=part.destination,
                priority=part.priority,
                after_at=round(part.after_at * 1_000_000),
                after_id=part.after_id,
                most=min(part.most, limit - len(rows)),
            )
            rows += unpack(packed, lambda seqs: tx.rows("claim_large", seqs=seqs))
        if rows:
            tx.rows("claim_taken", worker=worker, ids=[row.id for row in rows])
        return rows

    def migrate(self) -> Migrated:
        with self._translate_errors():
            return self._open_writer().write("migrate", self._migrate)

    def close(self) -> None:
        if self._pid == os.getpid():
            if self._reader is not None:
                self._reader.close()
            if self._writer is not None:
                release_writer(self.path, self)
        self._reader = self._writer = None

    def set_clock(self, at: float | None) -> None:
        if at is None:
            _stopped_clocks.pop(self.path, None)
        else:
            _stopped_clocks[self.path] = round(at * 1e6)

    def empty(self) -> None:
        def work(connection: sqlite3.Connection) -> None:
            tables = connection.execute("select name from sqlite_schema where type = 'table' and name glob 'todoku_*'")
            for (name,) in tables.fetchall():
                if not name.endswith(("_migration", "_audit", "_data_key")):
                    connection.execute(f'delete from "{name}"')

        with self._translate_errors():
            self._open_writer().write("migrate", work)

    def remove(self) -> None:
        self.close()
        for end in ("", "-journal", "-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)

    def _now(self) -> int:
        return wall_clock() if not _stopped_clocks else _stopped_clocks.get(self.path) or wall_clock()

    def _open_writer(self) -> Writer:
        if self._pid != os.getpid():  # a connection must not be used or closed after a fork
            _parent_connections.append((self._reader, self._writer))
            self._reader = self._writer = None
            self._pid = os.getpid()
        if self._writer is None:
            self._writer = acquire_writer(self.path, self, wal=self._settings.sqlite_wal, timeout=self._timeout)
        return self._writer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises errors of sqlite3 as errors of todoku, with a hint."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "no such table" in text or "no such column" in text:
                hint = f"box.migrate(), or `todoku migrate --db sqlite:///{self.path}`"
                raise SchemaError(f"{self.path} is not migrated: {text}", hint=hint) from error
            if "readonly" in text:
                raise DatabaseUnavailable(
                    f"{self.path} is read-only", hint="check the owner and the mode of the file"
                ) from error
            if "unable to open" in text:
                hint = f"does {Path(self.path).parent} exist, and may this user write there?"
                raise DatabaseUnavailable(f"{self.path} cannot be opened", hint=hint) from error
            raise DatabaseUnavailable(f"SQLite: {text}", hint=f"is the disk of {self.path} full or gone?") from error
        except sqlite3.DatabaseError as error:
            hint = f"is {self.path} a SQLite file? `pragma integrity_check` checks it"
            raise StoreError(f"SQLite refused: {error}", hint=hint) from error

    # ------------------------------------------------------------------------------------- migrations

    def _migrate(self, connection: sqlite3.Connection) -> Migrated:
        connection.execute(MIGRATION_TABLE)
        applied = dict(connection.execute("select version, checksum from todoku_migration").fetchall())
        plan = checked_plan(_PACKAGE, applied)
        for step in plan:
            for statement in _statements(step.sql):
                connection.execute(statement)
            connection.execute(
                "insert into todoku_migration (version, name, checksum, applied_at) values (?, ?, ?, ?)",
                (step.version, step.name, step.checksum, self._clock()),
            )
        return Migrated(tuple(step.version for step in plan), len(applied) + len(plan))

    def migration_script(self) -> str:
        now = "cast(strftime('%s', 'now') as integer) * 1000000"
        lines = ["begin immediate;", f"{MIGRATION_TABLE};"]
        for step in migrations(_PACKAGE):
            record = f"({step.version}, '{step.name}', '{step.checksum}', {now})"
            lines += [
                step.sql,
                f"insert into todoku_migration (version, name, checksum, applied_at) values {record};",
            ]
        return "\n".join([*lines, "commit;", ""])


def _statements(script: str) -> Iterator[str]:
    """Splits a migration into statements; executescript would commit the transaction they must share."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


_FILES: Final = ("", "-wal", "-shm", "-journal")
"""The suffixes of a database's files."""


def file_path(url: str) -> str:
    """Returns the file of a `sqlite:///…` URL as an absolute path."""
    rest = url.removeprefix("sqlite:///")
    if rest == url or rest in ("", ":memory:"):
        raise UnknownDatabase(
            f"{url!r} is not the URL of a SQLite file", hint="use sqlite:///name.db, or sqlite:////absolute/name.db"
        )
    return os.path.realpath(rest.split("?", 1)[0])
