"""What a backend gives the store: transactions in which named queries run, whatever the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import UUID

from todoku.core.errors import StoreError
from todoku.store.port import Listener, Row, Statement, Steps
from todoku.store.table import Bulk
from todoku.store.values import Migrated, Slice
from todoku.store.views import Facts

T = TypeVar("T")
Documents = Mapping[str, Any] | Mapping[int, int]
Lists = Sequence[int] | Sequence[float] | Sequence[str]
Bound = None | bool | int | float | str | bytes | UUID | datetime | Lists | Documents
"""What a query may be given. Mappings and lists of them travel as JSON text."""

DialectName = Literal["sqlite", "postgresql"]


class Tx(Protocol):
    """An open transaction. A query is named as in `queries.sql`; both backends have the same names."""

    def rows(self, query: str, /, **values: Bound | Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run a named query and return its rows."""

    def statement(self, statement: Statement) -> list[Row]:
        """Run a statement somebody built."""


class HandlerTransaction(Protocol):
    """A transaction that somebody else writes in, too."""

    connection: Any
    """The driver's own connection."""
    tx: Tx

    def check(self) -> None:
        """The handler is done: raises StoreError if it has ended the transaction itself."""

    def commit(self) -> None:
        """Commit."""


HANDLER: Final = "todoku_handler"
"""A savepoint at the start of a handler's transaction: gone, if the handler has ended the transaction."""


def ended_by_handler() -> StoreError:
    """What a handler is told that commits or rolls back by itself."""
    return StoreError("the handler ended its own transaction", hint="do not commit or roll back ctx.tx: todoku does")


class Database(Protocol):
    """One database of one of the two kinds."""

    dialect: DialectName
    queries: dict[str, str]

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction that may write, and commit it. `operation` names its failpoints.

        DatabaseBusy: a lock was not to be had, nothing was changed. DatabaseUnavailable: unknown.
        """

    def read(self, work: Callable[[Tx], T], *, pinned: bool = True) -> T:
        """Run `work` in a transaction that only reads.

        `pinned`: its queries are written for one plan each, by indexes. Those that list a whole table leave the choice
        of a plan to the database.
        """

    def snapshot(self, work: Callable[[Tx], T]) -> T:
        """As `read`, but every statement sees the same moment, and may take as long as it needs."""

    def claim(self, tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int) -> list[Any]:
        """The rows of the `claim` query over all slices, in their order."""

    def opened(self, limit: float) -> AbstractContextManager[HandlerTransaction]:
        """A transaction on a connection of its own, for somebody's handler. It is rolled back unless committed."""

    def bulk(self) -> AbstractContextManager[Bulk]:
        """A connection of its own that reads and writes whole tables."""

    def listen(self, notice: Callable[[], None]) -> Listener:
        """As `Store.listen`."""

    def now(self) -> int | None:
        """The `:now` of statements, in microseconds, where the database has no clock of its own."""

    def check_tx(self) -> Steps[None]:
        """Look at the caller's connection before its transaction is joined; raises if publishing there is a mistake."""

    def migrate(self) -> Migrated:
        """As `Store.migrate`."""

    def printed(self) -> str:
        """All migrations as one script."""

    def describe(self) -> str:
        """One line for a person: which server or library, and how it keeps what it acknowledged."""

    def facts(self) -> Facts:
        """As `Store.facts`, but for the version of the schema."""

    def close(self) -> None:
        """As `Store.close`."""

    def set_clock(self, at: float | None) -> None:
        """Let the clock stand still at a moment (unix seconds); None: let it go again. For tests.

        Whoever uses this database sees it: on SQLite everybody in this process, on PostgreSQL everybody.
        """

    def empty(self) -> None:
        """Remove every row, but for the audit's and the keys' of encryption. For tests. Nobody may be working."""

    def remove(self) -> None:
        """Remove the file, or the schema that was named, with everything in it. For tests. Nothing may be open."""
