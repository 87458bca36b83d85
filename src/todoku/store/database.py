"""What a backend gives the store: transactions in which named queries run, whatever the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from todoku.store.port import Row, Statement, Steps
from todoku.store.values import Migrated, Slice

T = TypeVar("T")
Bound = None | bool | int | float | str | bytes | UUID | datetime | Sequence[int] | Sequence[str] | Mapping[str, Any]
"""What a query may be given. Mappings and lists of them travel as JSON text."""

DialectName = Literal["sqlite", "postgresql"]


class Tx(Protocol):
    """An open transaction. A query is named as in `queries.sql`; both backends have the same names."""

    def rows(self, query: str, /, **values: Bound | Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run a named query and return its rows."""

    def statement(self, statement: Statement) -> list[Row]:
        """Run a statement somebody built."""


class Database(Protocol):
    """One database of one of the two kinds."""

    dialect: DialectName
    queries: dict[str, str]

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction that may write, and commit it. `operation` names its failpoints.

        DatabaseBusy: a lock was not to be had, nothing was changed. DatabaseUnavailable: unknown.
        """

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction that only reads."""

    def claim(self, tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int) -> list[Any]:
        """The rows of the `claim` query over all slices, in their order."""

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

    def close(self) -> None:
        """As `Store.close`."""
