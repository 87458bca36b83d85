"""How callers set up their connections must not matter: row factories, codecs, cursors, journals, begin recipes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from sqlalchemy import event

from tests.support.world import World
from tests.transactions.test_drivers import stored
from todoku import App, IdempotencyConflict
from todoku.store.sqlite.database import file_path

Publish = Callable[..., Any]


@pytest.fixture
def here(sqlite_url: str) -> Iterator[World]:
    """A SQLite file."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield world
    world.close()


@pytest.fixture
def there(postgres_url: str) -> Iterator[World]:
    """A PostgreSQL database."""
    world = World("postgres", postgres_url)
    yield world
    world.close()


def routed(world: World) -> App:
    app = App(world.url)
    app.route("**", to="warehouse", ordered=True)
    return app


def publish_all_ways(app: App, tx: Any) -> None:
    """Once with each part of the protocol: ledger, lane, duplicate, conflict, many."""
    first = app.publish("order.created", {"n": 1}, tx=tx, key="a", idempotency_key="k")
    again = app.publish("order.created", {"n": 1}, tx=tx, key="a", idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(IdempotencyConflict, match="differs in: n"):
        app.publish("order.created", {"n": 2}, tx=tx, key="a", idempotency_key="k")
    assert len(app.publish_many([("order.created", {"n": n}) for n in range(3)], tx=tx)) == 3


async def apublish_all_ways(app: App, tx: Any) -> None:
    """As `publish_all_ways`."""
    first = await app.apublish("order.created", {"n": 1}, tx=tx, key="a", idempotency_key="k")
    again = await app.apublish("order.created", {"n": 1}, tx=tx, key="a", idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(IdempotencyConflict, match="differs in: n"):
        await app.apublish("order.created", {"n": 2}, tx=tx, key="a", idempotency_key="k")
    assert len(await app.apublish_many([("order.created", {"n": n}) for n in range(3)], tx=tx)) == 3


ALL_WAYS = {"message": 4, "delivery": 4, "ledger": 1, "lane": 1}


# ------------------------------------------------------------------------------------------------- SQLite


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    """The recipe of Python's own documentation."""
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict], ids=["Row", "dict"])
@pytest.mark.parametrize("text", [str, bytes, lambda raw: raw.decode().upper().lower()], ids=["str", "bytes", "own"])
def test_sqlite3_row_and_text_factories(here: World, factory: Any, text: Any) -> None:
    """The caller's rows and texts stay as it wants them; todoku's are plain."""
    app = routed(here)
    with closing(sqlite3.connect(file_path(here.url))) as connection:
        connection.row_factory, connection.text_factory = factory, text
        publish_all_ways(app, connection)
        connection.commit()
        row = connection.execute("select 'x' as mine").fetchone()
        assert (row["mine"], connection.row_factory) == (text(b"x") if text is not str else "x", factory)
    app.close()
    assert stored(here) == ALL_WAYS


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict], ids=["Row", "dict"])
async def test_aiosqlite_row_factories(here: World, factory: Any) -> None:
    """As above."""
    app = routed(here)
    async with aiosqlite.connect(file_path(here.url)) as connection:
        connection.row_factory = factory
        await apublish_all_ways(app, connection)
        await connection.commit()
    app.close()
    assert stored(here) == ALL_WAYS


@pytest.mark.parametrize("level", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_sqlite3_isolation_levels(here: World, level: Any) -> None:
    """However the caller's transactions begin, they are joined."""
    app = routed(here)
    with closing(sqlite3.connect(file_path(here.url), isolation_level=level)) as connection:
        publish_all_ways(app, connection)
        assert connection.in_transaction
        connection.rollback()
    app.close()
    assert sum(stored(here).values()) == 0


def test_sqlalchemy_with_a_begin_of_its_own(here: World) -> None:
    """SQLAlchemy's recipe for SQLite savepoints: the driver never begins, an event does; a nested block comes first."""
    engine = sqlalchemy.create_engine(here.url)
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    app = routed(here)
    with engine.connect() as connection:
        with connection.begin_nested():
            publish_all_ways(app, connection)
        connection.rollback()
        assert sum(stored(here).values()) == 0
        with connection.begin_nested():
            publish_all_ways(app, connection)
        connection.commit()
    engine.dispose()
    app.close()
    assert stored(here) == ALL_WAYS


# --------------------------------------------------------------------------------------------- PostgreSQL


@pytest.mark.postgres
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row, scalar_row], ids=lambda factory: factory.__name__)
def test_psycopg_row_factories(there: World, factory: Any) -> None:
    """The caller's rows stay as it wants them; todoku's are plain."""
    app = routed(there)
    with psycopg.connect(there.url, row_factory=factory) as connection:
        publish_all_ways(app, connection)
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
async def test_psycopg_async_row_factories(there: World) -> None:
    """As above."""
    app = routed(there)
    async with await psycopg.AsyncConnection.connect(there.url, row_factory=dict_row) as connection:
        await apublish_all_ways(app, connection)
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor], ids=lambda factory: factory.__name__)
def test_psycopg_cursor_factories(there: World, factory: Any) -> None:
    """The caller's cursors may bind on the client, or by number; todoku's do not care."""
    app = routed(there)
    with psycopg.connect(there.url, cursor_factory=factory) as connection:
        publish_all_ways(app, connection)
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
def test_psycopg_in_a_pipeline(there: World) -> None:
    """A pipeline sends ahead of the answers; what publish must know, it waits for."""
    app = routed(there)
    with psycopg.connect(there.url) as connection, connection.pipeline():
        connection.execute("select 1")
        publish_all_ways(app, connection)
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
async def test_psycopg_async_in_a_pipeline(there: World) -> None:
    """As above."""
    app = routed(there)
    async with await psycopg.AsyncConnection.connect(there.url) as connection, connection.pipeline():
        await connection.execute("select 1")
        await apublish_all_ways(app, connection)
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
async def test_asyncpg_with_json_codecs_and_records_of_its_own(there: World) -> None:
    """The codec everybody sets, json.dumps, must not encode our documents a second time."""

    class Named(asyncpg.Record):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    app = routed(there)
    connection = await asyncpg.connect(there.url, record_class=Named)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with connection.transaction():
        await apublish_all_ways(app, connection)
    await connection.close()
    app.close()
    assert stored(there) == ALL_WAYS


@pytest.mark.postgres
def test_sqlalchemy_with_a_json_serializer_of_its_own(there: World) -> None:
    """As above, for the engine's own option."""
    engine = sqlalchemy.create_engine(
        there.url.replace("://", "+psycopg://", 1), json_serializer=lambda value: f'{{"wrapped": {json.dumps(value)}}}'
    )
    app = routed(there)
    with engine.begin() as connection:
        publish_all_ways(app, connection)
    engine.dispose()
    app.close()
    assert stored(there) == ALL_WAYS


class Setting(NamedTuple):
    """Something a caller sets on its session."""

    name: str
    value: str


@pytest.mark.postgres
@pytest.mark.parametrize(
    "setting",
    [
        Setting("search_path", "pg_temp, public"),
        Setting("timezone", "Asia/Kathmandu"),
        Setting("datestyle", "German, DMY"),
        Setting("default_transaction_isolation", "serializable"),
        Setting("standard_conforming_strings", "on"),
        Setting("extra_float_digits", "0"),
        Setting("plan_cache_mode", "force_generic_plan"),
    ],
    ids=lambda setting: setting.name,
)
def test_settings_of_the_callers_session(there: World, setting: Setting) -> None:
    """Times, floats and plans of the caller's session do not change what is stored."""
    app = routed(there)
    with psycopg.connect(there.url) as connection:
        connection.execute("select set_config(%s, %s, false)", setting)
        connection.commit()
        message = app.publish("order.created", {"f": 0.1 + 0.2}, tx=connection, delay=60)
    (row,) = there.deliveries()
    delay = (row.next_run_at - message.created_at).total_seconds()
    assert row.created_at is not None
    assert abs((row.created_at - message.created_at).total_seconds()) < 0.001
    assert 59.9 < delay < 60.1
    assert there.sql("select payload::text from todoku_message") == [('{"f":0.30000000000000004}',)]
    app.close()
