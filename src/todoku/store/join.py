"""Joins the caller's own transaction. Each driver needs a few lines, and none is imported by todoku.

A `tx` is a connection or session of sqlite3, aiosqlite, psycopg (sync and async), asyncpg, SQLAlchemy (Connection,
Session, AsyncConnection, AsyncSession) or Django. Each must have a transaction open, or open one implicitly with
the first statement: otherwise message and deliveries would not be one commit (I2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, nullcontext
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from todoku.core.errors import BlockingCall, NoTransaction, TransactionError, UnsupportedConnection, WrongDatabase
from todoku.store.database import DialectName
from todoku.store.publish import Publishing
from todoku.store.sql import Row, Statement, Steps, numbered_parameters, parameters, restyle

# ------------------------------------------------------------
# A savepoint in the caller's transaction: a failure inside it leaves the rest of the transaction as it was.


class Savepoint:
    """Undoes the statements inside `async with` if it raises; the transaction goes on either way.

    `run` runs statements in the caller's transaction, and waits for them in the caller's way.
    """

    def __init__(self, to: Publishing, run: Callable[[Steps[None]], Awaitable[None]]) -> None:
        self._to = to
        self._run = run

    async def __aenter__(self) -> None:
        await self._run(_open(self._to))

    async def __aexit__(
        self, _kind: type[BaseException] | None, failure: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if failure is None:
            await self._run(_close(self._to))
            return
        try:
            await self._run(_undo(self._to))
        except Exception as error:
            # The database has ended the whole transaction: the caller must know that its own rows are gone too.
            raise TransactionError(
                f"your transaction did not survive: {failure}", hint="roll back and begin it again"
            ) from error


def _open(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_open")
    yield to.one("savepoint")


def _undo(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_undo")
    yield to.one("savepoint_close")


def _close(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_close")


T = TypeVar("T")
Execute = Callable[[Statement], list[Row]]
ExecuteAsync = Callable[[Statement], Awaitable[list[Row]]]


class Joined(msgspec.Struct, frozen=True):
    """A caller's transaction: its dialect, and the function that executes in it, blocking or async."""

    dialect: DialectName
    execute: Execute | None = None
    execute_async: ExecuteAsync | None = None


def run(tx: object, dialect: DialectName, steps: Steps[T], *, twin: str = "the a… form of this call") -> T:
    """Runs `steps` in the caller's transaction. `twin`: the call to await instead, if the connection is async."""
    joined = join(tx, dialect)
    if joined.execute is None:
        raise BlockingCall(f"{_name(tx)} is an async connection", hint=f"await {twin}")
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_texts(joined.execute(statement)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        _add_retry_note(error)
        raise


async def run_async(tx: object, dialect: DialectName, steps: Steps[T]) -> T:
    """Runs `steps` in the caller's transaction, of an async or a blocking driver."""
    joined = join(tx, dialect)
    if joined.execute_async is None:
        return run(tx, dialect, steps)
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_texts(await joined.execute_async(statement)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        _add_retry_note(error)
        raise


def _texts(rows: list[Row]) -> list[Row]:
    """Decodes bytes to text: the caller's connection may have a text_factory, or the encoding SQL_ASCII."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


def _add_retry_note(error: Exception) -> None:
    """Adds a note to a serialization failure. The error keeps its type, because the caller's retry loop checks it."""
    errors = (error, error.__cause__, getattr(error, "orig", None))  # SQLAlchemy and Django wrap the driver's error
    if any("40001" in (getattr(each, "sqlstate", None), getattr(each, "pgcode", None)) for each in errors):
        error.add_note(
            "todoku: this transaction is repeatable read or serializable, and another one has changed rows it uses;"
            " this message is not stored: roll back and run the whole transaction again"
        )


def join(tx: object, dialect: DialectName) -> Joined:
    """Returns the transaction behind `tx`. Raises if there is none open, or the driver or database is a wrong one."""
    joined = _join_driver(tx)
    if joined.dialect != dialect:
        raise WrongDatabase(
            f"tx= is a {joined.dialect} connection, the App is on {dialect}",
            hint="the message must be in the database of your own rows: give the App that database's URL",
        )
    return joined


def _join_driver(tx: Any) -> Joined:
    if (driver := _driver(type(tx))) is not None:  # type: ignore[arg-type]  # classes are hashable
        return driver(tx)
    raise UnsupportedConnection(
        f"tx= cannot be {_name(tx)}",
        hint="pass a connection or session of sqlite3, aiosqlite, psycopg, asyncpg, SQLAlchemy or Django, "
        "or tx=None for a separate transaction",
    )


@lru_cache(maxsize=64)
def _driver(kind: type) -> Callable[[Any], Joined] | None:
    names = ((ancestor.__module__.split(".")[0], ancestor.__name__) for ancestor in kind.__mro__)
    return next((_DRIVERS[name] for name in names if name in _DRIVERS), None)


def _name(tx: object) -> str:
    return f"a {type(tx).__module__}.{type(tx).__qualname__}"


def _require(open_: bool, what: str, how: str) -> None:
    if not open_:
        raise NoTransaction(
            f"{what} has no transaction open, so there is nothing to join",
            hint=f"{how}, or pass tx=None for a separate transaction",
        )


# ------------------------------------------------------------------------------------------------ drivers


def _sqlite3(tx: Any) -> Joined:
    # By default, sqlite3 opens a transaction before the first INSERT; with isolation_level=None it does not.
    by_itself = tx.isolation_level is not None and getattr(tx, "autocommit", -1) is not True
    _require(tx.in_transaction or by_itself, "this sqlite3 connection (autocommit)", "execute BEGIN first")

    def execute(statement: Statement) -> list[Row]:
        with closing(tx.cursor()) as cursor:
            cursor.row_factory = None  # the caller's may return other row types
            if isinstance(statement.values, Mapping):
                return list(cursor.execute(statement.sql, statement.values))
            cursor.executemany(statement.sql, statement.values)
            return []

    return Joined("sqlite", execute=execute)


def _aiosqlite(tx: Any) -> Joined:
    def require(by_itself: bool) -> None:
        _require(tx.in_transaction or by_itself, "this aiosqlite connection (autocommit)", "execute BEGIN first")

    require(tx.isolation_level is not None)

    async def execute(statement: Statement) -> list[Row]:
        if not tx.in_transaction:  # Python 3.12's autocommit=True, which only the connection's thread may read
            require(await tx._execute(getattr, tx._conn, "autocommit", -1) is not True)
        async with tx.cursor() as cursor:
            cursor.row_factory = None  # the caller's may return other row types
            if isinstance(statement.values, Mapping):
                await cursor.execute(statement.sql, statement.values)
                return list(await cursor.fetchall())
            await cursor.executemany(statement.sql, statement.values)
            return []

    return Joined("sqlite", execute_async=execute)


def _psycopg_idle(tx: Any) -> bool:
    return bool(tx.autocommit and tx.info.transaction_status.name == "IDLE")


def _psycopg(tx: Any) -> Joined:
    _require(not _psycopg_idle(tx), "this psycopg connection (autocommit)", "use `with connection.transaction():`")

    from psycopg import Cursor  # noqa: PLC0415 - installed, because the connection is psycopg's

    def execute(statement: Statement) -> list[Row]:
        with Cursor(tx, row_factory=_tuples) as cursor:  # the caller's cursor class may bind in another style
            if tx.pgconn.pipeline_status:
                with tx.pipeline():  # its end waits for the rows
                    cursor.execute(restyle(statement.sql, "pyformat"), statement.values)
            else:
                cursor.execute(restyle(statement.sql, "pyformat"), statement.values)
            return cursor.fetchall() if _has_rows(cursor) else []

    return Joined("postgresql", execute=execute)


def _psycopg_async(tx: Any) -> Joined:
    _require(
        not _psycopg_idle(tx),
        "this psycopg connection (autocommit)",
        "use `async with connection.transaction():`",
    )

    from psycopg import AsyncCursor  # noqa: PLC0415 - installed, because the connection is psycopg's

    async def execute(statement: Statement) -> list[Row]:
        async with AsyncCursor(tx, row_factory=_tuples) as cursor:
            async with tx.pipeline() if tx.pgconn.pipeline_status else nullcontext():
                await cursor.execute(restyle(statement.sql, "pyformat"), statement.values)
            return await cursor.fetchall() if _has_rows(cursor) else []

    return Joined("postgresql", execute_async=execute)


def _has_rows(cursor: Any) -> bool:
    """Whether psycopg's statement returns rows. `cursor.description` would create an object for every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _tuples(_cursor: Any) -> Callable[[Any], Row]:
    return tuple


def _asyncpg(tx: Any) -> Joined:
    _require(tx.is_in_transaction(), "this asyncpg connection", "use `async with connection.transaction():`")

    async def execute(statement: Statement) -> list[Row]:
        given = _one(statement)
        values = [given[name] for name in numbered_parameters(statement.sql)]
        return [tuple(row.values()) for row in await tx.fetch(restyle(statement.sql, "dollar"), *values)]

    return Joined("postgresql", execute_async=execute)


def _sqlalchemy(tx: Any) -> Joined:
    connection = tx.connection() if hasattr(tx, "get_bind") else tx
    _refuse_sqlalchemy_autocommit(connection)

    def execute(statement: Statement) -> list[Row]:
        result = connection.execute(_text(statement.sql), statement.values)
        return [tuple(row) for row in result] if result.returns_rows else []

    return Joined(_sqlalchemy_dialect(connection), execute=execute)


def _sqlalchemy_async(tx: Any) -> Joined:
    def execute_in(connection: Any, statement: Statement) -> list[Row]:
        _refuse_sqlalchemy_autocommit(connection)
        result = connection.execute(_text(statement.sql), statement.values)
        return [tuple(row) for row in result] if result.returns_rows else []

    async def execute(statement: Statement) -> list[Row]:
        connection = await tx.connection() if hasattr(tx, "get_bind") else tx
        return await connection.run_sync(execute_in, statement)  # type: ignore[no-any-return]

    bound = tx.get_bind() if hasattr(tx, "get_bind") else tx
    return Joined(_sqlalchemy_dialect(bound), execute_async=execute)


def _sqlalchemy_dialect(bound: Any) -> DialectName:
    if bound.dialect.name not in ("sqlite", "postgresql"):
        raise UnsupportedConnection(f"SQLAlchemy on {bound.dialect.name}", hint="todoku needs SQLite or PostgreSQL")
    return bound.dialect.name  # type: ignore[no-any-return]


def _refuse_sqlalchemy_autocommit(connection: Any) -> None:
    of_engine = getattr(connection.dialect, "_on_connect_isolation_level", None)
    level = connection.get_execution_options().get("isolation_level", of_engine)
    _require(level != "AUTOCOMMIT", "this SQLAlchemy connection (AUTOCOMMIT)", "use a connection with transactions")


def _django(tx: Any) -> Joined:
    _require(
        tx.in_atomic_block or not tx.get_autocommit(),
        "this Django connection",
        "use `with transaction.atomic():`",
    )
    if tx.vendor not in ("sqlite", "postgresql"):
        raise UnsupportedConnection(f"Django on {tx.vendor}", hint="todoku needs SQLite or PostgreSQL")

    def execute(statement: Statement) -> list[Row]:
        names, sql = parameters(statement.sql), restyle(statement.sql, "format")
        with tx.cursor() as cursor:
            if isinstance(statement.values, Mapping):
                cursor.execute(sql, [statement.values[name] for name in names])
                return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            cursor.executemany(sql, [[row[name] for name in names] for row in statement.values])
            return []

    return Joined(tx.vendor, execute=execute)


@lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - installed, because the session is SQLAlchemy's

    return text(sql)


def _one(statement: Statement) -> Mapping[str, Any]:
    if not isinstance(statement.values, Mapping):
        raise TypeError("only statements for SQLite have many rows")
    return statement.values


_DRIVERS: Final[Mapping[tuple[str, str], Callable[[Any], Joined]]] = {
    ("sqlite3", "Connection"): _sqlite3,
    ("aiosqlite", "Connection"): _aiosqlite,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}
