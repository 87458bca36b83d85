"""User code with a connection of its own: one small class per kind of `tx`, all with the same few verbs.

The verbs block. A caller on an async driver drives an event loop with them, so a test reads the same for both.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import aiosqlite
import asyncpg
import psycopg
import psycopg.conninfo
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.support.world import Backend
from todoku import App, Handle, Message, Workflow
from todoku.core.flow import KeyedRun
from todoku.core.message import Draft
from todoku.store.sqlite.database import file_path


class Caller(ABC):
    """Somebody with a connection to the App's database. `autocommit`: it never opens a transaction."""

    backend: ClassVar[Backend]
    tx: Any

    @abstractmethod
    def __init__(self, url: str, *, autocommit: bool = False) -> None: ...

    def begin(self) -> None:  # noqa: B027 - most drivers begin by themselves
        """Begin, where the driver does not do it by itself."""

    def execute(self, statement: str) -> None:
        """Run a statement of the caller's own in its transaction."""
        self.tx.execute(statement)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A nested transaction that is rolled back at its end."""
        self.execute("savepoint inner_one")
        yield
        self.execute("rollback to savepoint inner_one")

    def close(self) -> None:
        self.tx.close()

    def publish(self, box: App, topic: str, payload: object, **options: Any) -> Message:
        return box.publish(topic, payload, tx=self.tx, **options)

    def publish_many(self, box: App, events: list[tuple[str, object]]) -> list[Message]:
        return box.publish_many(events, tx=self.tx)

    def start(self, workflow: Workflow[..., Any], *args: Any, **options: Any) -> Handle[Any]:
        return workflow.using(tx=self.tx, **options).start(*args)

    def signal(self, box: App, run: Handle[Any] | KeyedRun, name: str, payload: object) -> None:
        box.signal(run, name, payload, tx=self.tx)

    def store(self, box: App, drafts: list[Draft]) -> list[Message]:
        """Several drafts at once, each with options of its own: what `enqueue_many` will do."""
        return box.outbox.put(drafts, self.tx, twin="")


class AsyncCaller(Caller):
    """A caller on an async driver, with an event loop that runs while it does something."""

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        self._runner = asyncio.Runner()
        try:
            self.run(self.open(url, autocommit=autocommit))
        except BaseException:
            self._runner.close()
            raise

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    @abstractmethod
    async def open(self, url: str, *, autocommit: bool) -> None: ...

    async def shut(self) -> None:
        await self.tx.close()

    def execute(self, statement: str) -> None:
        self.run(_awaited(lambda: self.tx.execute(statement)))

    def commit(self) -> None:
        self.run(self.tx.commit())

    def rollback(self) -> None:
        self.run(self.tx.rollback())

    def close(self) -> None:
        try:
            self.run(self.shut())
        finally:
            self._runner.close()

    def publish(self, box: App, topic: str, payload: object, **options: Any) -> Message:
        return self.run(box.apublish(topic, payload, tx=self.tx, **options))  # type: ignore[no-any-return]

    def publish_many(self, box: App, events: list[tuple[str, object]]) -> list[Message]:
        return self.run(box.apublish_many(events, tx=self.tx))  # type: ignore[no-any-return]

    def start(self, workflow: Workflow[..., Any], *args: Any, **options: Any) -> Handle[Any]:
        return self.run(workflow.using(tx=self.tx, **options).astart(*args))  # type: ignore[no-any-return]

    def signal(self, box: App, run: Handle[Any] | KeyedRun, name: str, payload: object) -> None:
        self.run(box.asignal(run, name, payload, tx=self.tx))

    def store(self, box: App, drafts: list[Draft]) -> list[Message]:
        return self.run(box.outbox.aput(drafts, self.tx))  # type: ignore[no-any-return]


async def _awaited(call: Callable[[], Any]) -> Any:
    """Await what `call` returns; some drivers return an awaitable that is no coroutine."""
    return await call()


# ------------------------------------------------------------------------------------------------ drivers


class Sqlite3(Caller):
    """The standard library as it comes: it opens a transaction before the first INSERT."""

    backend = "sqlite"

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        self.tx = sqlite3.connect(file_path(url), timeout=60)
        if autocommit:
            self.tx.isolation_level = None


class Sqlite3Begin(Sqlite3):
    """The standard library left in autocommit, with a BEGIN of the caller's own."""

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        super().__init__(url, autocommit=True)

    def begin(self) -> None:
        self.tx.execute("begin immediate")


class AioSqlite(AsyncCaller):
    backend = "sqlite"

    async def open(self, url: str, *, autocommit: bool) -> None:
        level = None if autocommit else "DEFERRED"
        self.tx = await aiosqlite.connect(file_path(url), timeout=60, isolation_level=level)


class Psycopg(Caller):
    backend = "postgres"

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        self.tx = psycopg.connect(url, autocommit=autocommit)

    @contextmanager
    def undone(self) -> Iterator[None]:
        with self.tx.transaction():
            yield
            raise psycopg.Rollback


class PsycopgBlock(Psycopg):
    """psycopg in autocommit, with `with connection.transaction()` around the work."""

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        super().__init__(url, autocommit=True)

    def begin(self) -> None:
        self._block = self.tx.transaction()
        self._block.__enter__()

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        self._block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


class PsycopgAsync(AsyncCaller):
    backend = "postgres"

    async def open(self, url: str, *, autocommit: bool) -> None:
        self.tx = await psycopg.AsyncConnection.connect(url, autocommit=autocommit)


class Asyncpg(AsyncCaller):
    """asyncpg, which is in autocommit until a transaction is started."""

    backend = "postgres"

    async def open(self, url: str, *, autocommit: bool) -> None:
        self.tx = await asyncpg.connect(url)

    def begin(self) -> None:
        self._transaction = self.tx.transaction()
        self.run(self._transaction.start())

    def commit(self) -> None:
        self.run(self._transaction.commit())

    def rollback(self) -> None:
        self.run(self._transaction.rollback())

    @contextmanager
    def undone(self) -> Iterator[None]:
        inner = self.tx.transaction()
        self.run(inner.start())
        yield
        self.run(inner.rollback())


class AsyncpgPool(Asyncpg):
    """A connection lent by a pool, which is a proxy."""

    async def open(self, url: str, *, autocommit: bool) -> None:
        self._pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        self.tx = await self._pool.acquire()

    async def shut(self) -> None:
        await self._pool.release(self.tx)
        await self._pool.close()


# --------------------------------------------------------------------------------------------- SQLAlchemy


class SqlAlchemy(Caller):
    """SQLAlchemy's Connection."""

    driver: ClassVar[str]

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._engine = sqlalchemy.create_engine(driver_url(url, self.driver), **options)
        self.tx = self.connected(self._engine)

    def connected(self, engine: sqlalchemy.Engine) -> Any:
        return engine.connect()

    def execute(self, statement: str) -> None:
        self.tx.execute(sqlalchemy.text(statement))

    @contextmanager
    def undone(self) -> Iterator[None]:
        inner = self.tx.begin_nested()
        yield
        inner.rollback()

    def close(self) -> None:
        self.tx.close()
        self._engine.dispose()


class SqlAlchemySession(SqlAlchemy):
    def connected(self, engine: sqlalchemy.Engine) -> Any:
        return Session(engine)


class SqlAlchemyScoped(SqlAlchemy):
    def connected(self, engine: sqlalchemy.Engine) -> Any:
        return scoped_session(sessionmaker(engine))

    def close(self) -> None:
        self.tx.remove()
        self._engine.dispose()


class SqlAlchemyAsync(AsyncCaller):
    """SQLAlchemy's AsyncConnection."""

    driver: ClassVar[str]

    async def open(self, url: str, *, autocommit: bool) -> None:
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._engine = create_async_engine(driver_url(url, self.driver), **options)
        self.tx = await self.connected()

    async def connected(self) -> Any:
        return await self._engine.connect()

    async def shut(self) -> None:
        await self.tx.close()
        await self._engine.dispose()

    def execute(self, statement: str) -> None:
        self.run(_awaited(lambda: self.tx.execute(sqlalchemy.text(statement))))

    @contextmanager
    def undone(self) -> Iterator[None]:
        inner = self.run(_awaited(self.tx.begin_nested))
        yield
        self.run(inner.rollback())


class SqlAlchemyAsyncSession(SqlAlchemyAsync):
    async def connected(self) -> Any:
        return AsyncSession(self._engine)


def driver_url(url: str, driver: str) -> str:
    """The App's URL as SQLAlchemy wants it."""
    return url.replace("://", f"+{driver}://", 1)


# ------------------------------------------------------------------------------------------------- Django


class Django(Caller):
    """`django.db.connection`, in `transaction.atomic()`."""

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        _configured()
        from django.db import connection, connections
        from django.db.utils import load_backend

        settings = connections.configure_settings({"default": self.settings(url)})["default"]
        connections["default"] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "default")
        self.tx = connection

    @abstractmethod
    def settings(self, url: str) -> dict[str, object]:
        """The entry of Django's DATABASES."""

    def begin(self) -> None:
        from django.db import transaction

        self._block = transaction.atomic()
        self._block.__enter__()

    def execute(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        from django.db import transaction

        transaction.set_rollback(True)
        self._block.__exit__(None, None, None)

    @contextmanager
    def undone(self) -> Iterator[None]:
        from django.db import transaction

        with transaction.atomic():
            yield
            transaction.set_rollback(True)

    def close(self) -> None:
        from django.db import connections

        connections["default"].close()
        del connections["default"]


class DjangoSqlite(Django):
    backend = "sqlite"

    def settings(self, url: str) -> dict[str, object]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": file_path(url)}


class DjangoPostgres(Django):
    """Here the connection itself, not the proxy that finds it."""

    backend = "postgres"
    options: ClassVar[dict[str, object]] = {}

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        from django.db import connections

        super().__init__(url, autocommit=autocommit)
        self.tx = connections["default"]

    def settings(self, url: str) -> dict[str, object]:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts.get("user", ""),
            "HOST": parts.get("host", ""),
            "PASSWORD": parts.get("password", ""),
            "PORT": parts.get("port", ""),
            "OPTIONS": self.options,
        }


class DjangoPostgresServerSide(DjangoPostgres):
    """Django's other way of binding parameters."""

    options: ClassVar[dict[str, object]] = {"server_side_binding": True}


def _configured() -> None:
    """Django's settings are the process's: the first to come makes them, and they name no database."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()


# -------------------------------------------------------------------------------------------------- kinds


def _over(kind: type[Caller], backend: Backend, driver: str) -> type[Caller]:
    return type(f"{kind.__name__}_{driver}", (kind,), {"backend": backend, "driver": driver})


_BLOCKING = (SqlAlchemy, SqlAlchemySession, SqlAlchemyScoped)
_ASYNC = (SqlAlchemyAsync, SqlAlchemyAsyncSession)

KINDS: list[type[Caller]] = [
    Sqlite3,
    Sqlite3Begin,
    AioSqlite,
    DjangoSqlite,
    *(_over(kind, "sqlite", "pysqlite") for kind in _BLOCKING),
    *(_over(kind, "sqlite", "aiosqlite") for kind in _ASYNC),
    Psycopg,
    PsycopgBlock,
    PsycopgAsync,
    Asyncpg,
    AsyncpgPool,
    DjangoPostgres,
    DjangoPostgresServerSide,
    *(_over(kind, "postgres", driver) for driver in ("psycopg", "psycopg2") for kind in _BLOCKING),
    *(_over(kind, "postgres", driver) for driver in ("psycopg", "asyncpg") for kind in _ASYNC),
]
