"""The one protocol between the store and its databases: transactions in which named queries run.

Calls block, and may come from any thread. Any call may raise DatabaseUnavailable, and then its outcome is unknown;
every call of the store may be repeated then, because a claim (id, epoch, worker) works once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import StoreError
from todoku.store.sql import Row, Statement, Steps
from todoku.store.table import Bulk

T = TypeVar("T")
Documents = Mapping[str, Any] | Mapping[int, int]
Lists = Sequence[int] | Sequence[float] | Sequence[str]
Bound = None | bool | int | float | str | bytes | UUID | datetime | Lists | Documents
"""A parameter of a query. Mappings and lists of them are passed as JSON text."""

DialectName = Literal["sqlite", "postgresql"]


class Slice(msgspec.Struct, frozen=True):
    """A part of the waiting deliveries: one (queue, destination, priority), from a position on, at most `most` rows."""

    queue: str
    destination: str
    priority: int
    after_at: float = 0.0
    after_id: int = 0
    most: int = 500


def slice_parameters(slices: Sequence[Slice]) -> dict[str, list[Any]]:
    """The slices as columns, for statements that claim from all of them."""
    return {
        "queues": [part.queue for part in slices],
        "destinations": [part.destination for part in slices],
        "priorities": [part.priority for part in slices],
        "after_ats": [part.after_at for part in slices],
        "after_ids": [part.after_id for part in slices],
        "mosts": [part.most for part in slices],
    }


class Migrated(msgspec.Struct, frozen=True):
    """The versions a migration applied, and the version the schema has now."""

    applied: tuple[int, ...]
    version: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database is and how it is set up. A field that does not apply to a kind of database is None."""

    describe: str
    latest: int
    version: int | None = None
    durable: bool
    writable: bool
    wal_safe: bool | None = None
    free_bytes: int | None = None
    connections_used: int | None = None
    connections_max: int | None = None
    pooled: bool | None = None
    shared_files: tuple[str, ...] | None = None
    """Files of the database, with their modes, that others than their owner may use."""
    encoding: str = "UTF8"
    """The encoding of text."""
    no_schema: bool = False
    """No schema is configured, and the search path names none that exists."""
    schemas: tuple[str, ...] = ()
    """The schemas with tables of todoku, if no schema is configured."""
    stray: int = 0
    """History rows outside every partition."""


class Listener(Protocol):
    """Waits for notices of new work."""

    announces: bool
    """Whether publishers notify only while a worker says that it is idle."""

    def close(self) -> None:
        """Stops waiting."""


class Tx(Protocol):
    """An open transaction. Queries are named as in the `.sql` files; both databases have the same names."""

    def rows(self, query: str, /, **values: Bound | Sequence[Mapping[str, Any]]) -> list[Any]:
        """Runs a named query and returns its rows."""

    def statement(self, statement: Statement) -> list[Row]:
        """Runs a statement that was built."""


def run_steps(tx: Tx, steps: Steps[T], first: Statement | None = None) -> T:
    """Runs all steps in the transaction, and returns their result. `first`: the first statement, if it was taken."""
    try:
        statement = next(steps) if first is None else first
        while True:
            statement = steps.send(tx.statement(statement))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class HandlerTransaction(Protocol):
    """A transaction in which a handler writes, too."""

    connection: Any
    """The driver's own connection."""
    tx: Tx

    def check(self) -> None:
        """Raises StoreError if the handler has ended the transaction itself."""

    def commit(self) -> None:
        """Commits."""


HANDLER: Final = "todoku_handler"
"""The savepoint at the start of a handler's transaction: gone if the handler has ended the transaction."""


def ended_by_handler() -> StoreError:
    """The error of a handler that commits or rolls back its transaction."""
    return StoreError("the handler ended its own transaction", hint="do not commit or roll back ctx.tx: todoku does")


class Database(Protocol):
    """A SQLite file or a PostgreSQL database."""

    dialect: DialectName
    queries: dict[str, str]

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        """Runs `work` in a transaction that may write, and commits it. `operation` names its failpoints.

        DatabaseBusy: a lock was not available, nothing was changed. DatabaseUnavailable: unknown.
        """

    def write_alone(self, operation: str, work: Callable[[Tx], T]) -> T:
        """As `write`, for work that runs one statement and does nothing else: in one round trip if it can.

        `work` is called once more, in a transaction of the usual kind, if its statement could not be sent so.
        """

    def read_alone(self, work: Callable[[Tx], T]) -> T:
        """As `read`, for work that runs one statement: as `write_alone`."""

    def read(self, work: Callable[[Tx], T], *, pinned: bool = True) -> T:
        """Runs `work` in a transaction that only reads.

        `pinned`: its queries are written for one plan each, by indexes. Queries that list a whole table leave the plan
        to the database.
        """

    def snapshot(self, work: Callable[[Tx], T]) -> T:
        """As `read`, but all statements see the same moment, and may take as long as they need."""

    def claim(self, tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int) -> list[Any]:
        """The rows of the `claim` query over all slices, in their order."""

    def open_transaction(self, limit: float) -> AbstractContextManager[HandlerTransaction]:
        """A transaction on its own connection, for a handler. It is rolled back unless committed."""

    def bulk(self) -> AbstractContextManager[Bulk]:
        """A separate connection that reads and writes whole tables."""

    def listen(
        self,
        notice: Callable[[], None],
        *,
        awaited: Callable[[str], None],
        limited: Callable[[], None],
        is_busy: Callable[[], bool],
    ) -> Listener:
        """Calls `notice`, from a thread, whenever there may be new work. It may be called too often, and too seldom.

        `awaited` is called with the id of a message whose end another process waits for (`announce_wait`), `limited`
        when a pause or a limit was changed (`announce_limits`). While `is_busy`, a database whose publishers cannot
        know that may call `notice` later.
        """

    def listen_for_ends(self, ended: Callable[[str], None]) -> Listener | None:
        """Calls `ended`, from a thread, with the id of a message for which `give_notice` was called.

        None: this database has no notices between processes.
        """

    def announce_wait(self, message_id: str) -> None:
        """Tells every process that listens for work that the end of this message's deliveries is awaited."""

    def announce_limits(self, tx: Tx) -> None:
        """Tells every process that listens for work, with the commit, that a pause or a limit was changed."""

    def give_notice(self, tx: Tx, message_ids: Sequence[str]) -> None:
        """Tells every process that listens for ends, with the commit, that deliveries of these messages ended."""

    def now(self) -> int | None:
        """The `:now` of statements, in microseconds, where the database has no clock (SQLite)."""

    def check_tx(self) -> Steps[None]:
        """Checks a caller's connection before its transaction is joined; raises if publishing there is a mistake."""

    def migrate(self) -> Migrated:
        """Brings the schema to this program's version, once, even if several processes try at the same time.

        A newer schema, or a migration whose text changed after it was applied, raises SchemaError.
        """

    def migration_script(self) -> str:
        """All migrations as one script."""

    def describe(self) -> str:
        """One line for people: which server or library, and how durable an acknowledged write is."""

    def facts(self) -> Facts:
        """What this database is and how it is set up, without the version of the schema."""

    def close(self) -> None:
        """Closes every connection. The database cannot be used afterwards."""

    def set_clock(self, at: float | None) -> None:
        """Stops the clock at a moment (unix seconds); None: lets it run again. For tests.

        On SQLite it holds for this process, on PostgreSQL for every connection.
        """

    def empty(self) -> None:
        """Removes every row but the audit and the data keys. For tests. No worker may run."""

    def remove(self) -> None:
        """Removes the file, or the configured schema with everything in it. For tests. No connection may be open."""
