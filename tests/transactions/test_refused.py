"""What `tx=` refuses: nothing to join, another database, an unknown object, a blocking call in an event loop.

Each refusal says what to do, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.support.world import World
from tests.transactions.callers import AsyncCaller, AsyncpgPool, Caller, Psycopg, Sqlite3, driver_url
from tests.transactions.test_drivers import NOTHING, stored
from todoku import App, InvalidMessage
from todoku.core.errors import (
    BlockingCall,
    NoTransaction,
    TransactionError,
    UnsupportedConnection,
    WrongDatabase,
)
from todoku.store.sqlite.database import file_path

needs_autocommit = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="needs Python 3.12: `make clean test PYTHON=python3.12`"
)


@pytest.fixture
def here(sqlite_url: str) -> Iterator[World]:
    """A SQLite file, where the database makes no difference."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield world
    world.close()


@pytest.fixture
def app(here: World) -> Iterator[App]:
    """An App on it."""
    app = App(here.url)
    app.route("**", to="warehouse")
    yield app
    app.close()


# ------------------------------------------------------------------------------------------ no transaction


def test_a_connection_without_a_transaction_is_refused(shop: World, box: App, kind: type[Caller]) -> None:
    """I2: in autocommit message and deliveries would be two commits, so nothing is stored, and the hint says how."""
    caller = kind(shop.url, autocommit=True)
    try:
        with pytest.raises(NoTransaction, match="nothing to join") as refused:
            caller.publish(box, "order.created", {"n": 1})
        with pytest.raises(NoTransaction):
            caller.publish_many(box, [("order.created", {"n": 1})])
    finally:
        caller.close()
    assert "tx=None" in refused.value.hint
    assert stored(shop) == NOTHING


@pytest.mark.parametrize("option", ["engine", "connection"])
def test_sqlalchemys_autocommit_is_seen_wherever_it_was_set(here: World, app: App, option: str) -> None:
    """I2: on the engine as a whole, or as an option of one connection."""
    engine = sqlalchemy.create_engine(here.url)
    if option == "engine":
        connection = engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    else:
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection, pytest.raises(NoTransaction):
        app.publish("order.created", {"n": 1}, tx=connection)
    engine.dispose()
    assert stored(here) == NOTHING


def test_one_connection_may_have_transactions_though_its_engine_has_none(here: World, app: App) -> None:
    """The connection's own option counts, not the engine's."""
    engine = sqlalchemy.create_engine(here.url, isolation_level="AUTOCOMMIT")
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        app.publish("order.created", {"n": 1}, tx=connection)
        assert stored(here) == NOTHING
        connection.commit()
    engine.dispose()
    assert stored(here)["message"] == 1


@needs_autocommit
@pytest.mark.parametrize("opened", ["sqlite3", "aiosqlite"])
def test_the_autocommit_of_python_3_12_is_seen(here: World, app: App, opened: str) -> None:
    """I2: autocommit=True opens no transaction by itself, whatever isolation_level says."""

    path = file_path(here.url)
    options: dict[str, Any] = {"autocommit": True}

    def publish() -> None:
        with closing(sqlite3.connect(path, **options)) as connection:
            app.publish("order.created", {"n": 1}, tx=connection)

    async def publish_async() -> None:
        async with aiosqlite.connect(path, **options) as connection:
            await app.apublish("order.created", {"n": 1}, tx=connection)

    with pytest.raises(NoTransaction):
        publish() if opened == "sqlite3" else asyncio.run(publish_async())
    assert stored(here) == NOTHING


# ------------------------------------------------------------------------------------------ blocking calls


def test_a_blocking_publish_on_an_async_connection_names_the_call_to_await(
    shop: World, box: App, kind: type[Caller]
) -> None:
    """`publish` cannot await; the error names `apublish`. A blocking connection takes both."""
    caller = kind(shop.url)
    try:
        caller.begin()
        if isinstance(caller, AsyncCaller):
            with pytest.raises(BlockingCall, match="apublish"):
                box.publish("order.created", {"n": 1}, tx=caller.tx)
            with pytest.raises(BlockingCall, match="apublish_many"):
                box.publish_many([("order.created", {"n": 1})], tx=caller.tx)
            caller.rollback()
            assert stored(shop) == NOTHING
        else:
            caller.publish(box, "order.created", {"n": 1})
            caller.commit()
            assert stored(shop)["message"] == 1
    finally:
        caller.close()


@pytest.mark.parametrize("kind", [Sqlite3, pytest.param(Psycopg, marks=pytest.mark.postgres)])
def test_apublish_takes_a_blocking_connection(shop: World, box: App, caller: Caller) -> None:
    """Async code with a blocking driver: it blocks as all its other statements do."""

    async def work() -> None:
        await box.apublish("order.created", {"n": 1}, tx=caller.tx)
        await box.apublish_many([("order.created", {"n": 2})], tx=caller.tx)

    asyncio.run(work())
    assert stored(shop) == NOTHING
    caller.commit()
    assert stored(shop) == NOTHING | {"message": 2, "delivery": 4}


def test_a_transaction_of_its_own_must_not_block_an_event_loop(here: World, app: App) -> None:
    """publish(tx=None) waits for the disk: in a running loop it names the call to await, and that one works."""

    async def work() -> None:
        with pytest.raises(BlockingCall, match="apublish"):
            app.publish("order.created", {"n": 1}, tx=None)
        assert stored(here) == NOTHING
        message = await app.apublish("order.created", {"n": 2}, tx=None)
        assert not message.duplicate
        assert len(await app.apublish_many([("order.created", {"n": n}) for n in range(3)], tx=None)) == 3

    asyncio.run(work())
    assert stored(here) == NOTHING | {"message": 4, "delivery": 4}


# ------------------------------------------------------------------------------------------ wrong database


@pytest.mark.postgres
def test_a_connection_to_the_other_kind_of_database_is_refused(
    here: World, app: App, postgres_url: str, tmp_path: Path
) -> None:
    """I2: a message in another database than the caller's rows would not be one commit with them."""
    there = World("postgres", postgres_url)
    other = App(postgres_url)
    other.route("**", to="warehouse")
    with there.connect() as tx, pytest.raises(WrongDatabase, match="postgresql connection, the App is on sqlite"):
        app.publish("order.created", {"n": 1}, tx=tx)
    with closing(here.connect()) as tx, pytest.raises(WrongDatabase, match="the App is on postgresql") as refused:
        other.publish("order.created", {"n": 1}, tx=tx)
    engine = sqlalchemy.create_engine(driver_url(postgres_url, "psycopg2"))
    with Session(engine) as session, pytest.raises(WrongDatabase):
        app.publish("order.created", {"n": 1}, tx=session)
    engine.dispose()
    assert "URL" in refused.value.hint
    assert stored(here) == stored(there) == NOTHING
    other.close()
    there.close()


@pytest.mark.postgres
async def test_async_connections_to_the_other_kind_are_refused_too(app: App, postgres_url: str) -> None:
    """As above, for asyncpg and psycopg's async connection."""
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        with pytest.raises(WrongDatabase):
            await app.apublish("order.created", {"n": 1}, tx=connection)
    await connection.close()
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        with pytest.raises(WrongDatabase):
            await app.apublish("order.created", {"n": 1}, tx=other)


# --------------------------------------------------------------------------------------- unsupported things


class Pretender:
    """Looks like a connection to a duck."""

    in_transaction = True
    isolation_level = "DEFERRED"

    def execute(self, *_: object) -> None: ...


THINGS = {
    "a pretender": Pretender(),
    "a URL": "sqlite:///todoku.db",
    "a number": 7,
    "a truth": True,
    "an object": object(),
    "a module": sqlite3,
    "a class": Session,
}


@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_an_unknown_object_is_refused(here: World, app: App, thing: object) -> None:
    """UnsupportedConnection is a TypeError, names what came and lists what may come."""
    with pytest.raises(UnsupportedConnection, match="tx= cannot be a ") as refused:
        app.publish("order.created", {"n": 1}, tx=thing)
    with pytest.raises(TypeError):
        asyncio.run(app.apublish("order.created", {"n": 1}, tx=thing))
    assert isinstance(refused.value, TransactionError)
    assert "SQLAlchemy" in refused.value.hint
    assert stored(here) == NOTHING


def test_a_cursor_is_not_a_connection(here: World, app: App) -> None:
    """A cursor's transaction is its connection's: that is what to hand in."""
    cursor = here.connect().cursor()
    with closing(cursor.connection), pytest.raises(UnsupportedConnection, match=r"sqlite3\.Cursor"):
        app.publish("order.created", {"n": 1}, tx=cursor)


@pytest.mark.postgres
def test_a_pool_is_not_a_connection(app: App, postgres_url: str) -> None:
    """A pool has no transaction: nobody knows which connection's it should be."""
    caller = AsyncpgPool(postgres_url)
    try:
        with pytest.raises(UnsupportedConnection, match="Pool"):
            app.publish("order.created", {"n": 1}, tx=caller._pool)
    finally:
        caller.close()


def test_a_subclass_of_a_connection_is_one(here: World, app: App) -> None:
    """People wrap connections; what counts is what it is made of."""

    class Traced(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(file_path(here.url), factory=Traced)) as connection:
        app.publish("order.created", {"n": 1}, tx=connection)
        connection.commit()
    assert stored(here)["message"] == 1


def test_a_session_that_is_bound_to_another_database_kind_says_so(app: App) -> None:
    """SQLAlchemy knows many databases, todoku two."""
    engine = sqlalchemy.create_mock_engine("mysql+pymysql://", executor=lambda *_: None)
    fake: Any = type("Connection", (), {"__module__": "sqlalchemy.engine.base", "dialect": engine.dialect})()
    fake.get_execution_options = dict
    with pytest.raises(UnsupportedConnection, match="mysql"):
        app.publish("order.created", {"n": 1}, tx=fake)


# ------------------------------------------------------------------------------------------- tx left out


def test_tx_cannot_be_left_out(here: World, app: App) -> None:
    """The easy call must not be the wrong one: `tx` is a required keyword on all four."""
    for call in (app.publish, app.apublish):
        with pytest.raises(TypeError, match="tx"):
            call("order.created", {"n": 1})  # type: ignore[call-arg]
    for many in (app.publish_many, app.apublish_many):
        with pytest.raises(TypeError, match="tx"):
            many([("order.created", {"n": 1})])  # type: ignore[call-arg]
    assert stored(here) == NOTHING


def test_tx_none_is_a_transaction_of_its_own(here: World, app: App) -> None:
    """On purpose: committed when the call returns; with publish_many all of them or none."""
    message = app.publish("order.created", {"n": 1}, tx=None)
    assert [row.message_id for row in here.deliveries()] == [message.id]
    app.publish_many([("order.created", {"n": n}) for n in range(3)], tx=None)
    with pytest.raises(InvalidMessage):
        app.publish_many([("order.created", {"n": 1}), ("not a topic", {})], tx=None)
    assert stored(here) == NOTHING | {"message": 4, "delivery": 4}


def test_an_app_may_require_a_transaction(here: World) -> None:
    """App(require_tx=True): tx=None is a mistake there."""
    strict = App(here.url, require_tx=True)
    strict.route("**", to="warehouse")
    with pytest.raises(InvalidMessage, match="requires tx="):
        strict.publish("order.created", {"n": 1}, tx=None)
    with pytest.raises(InvalidMessage, match="requires tx="):
        asyncio.run(strict.apublish("order.created", {"n": 1}, tx=None))
    strict.close()
    assert stored(here) == NOTHING
