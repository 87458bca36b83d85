"""The fixtures of these tests: a kind of caller, its database, and an App on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.migrated import copy_migrated
from tests.support.postgres import fresh_database, template_database
from tests.support.world import World
from tests.transactions.callers import KINDS, Caller
from todoku import App

USED = (
    "message", "delivery", "history", "ledger", "lane", "worker", "inbox", "inbox_sequence", "step", "signal",
    "run_call", "data_key",
)  # fmt: skip


def _parameter(kind: type[Caller]) -> object:
    marks = [pytest.mark.postgres] if kind.backend == "postgres" else []
    return pytest.param(kind, id=kind.__name__, marks=marks)


@pytest.fixture(params=[_parameter(kind) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> type[Caller]:
    """Each kind of `tx` in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_dsn: str) -> Iterator[str]:
    """One migrated PostgreSQL database for all kinds: two hundred of them would take a minute to make."""
    template = template_database(Path(os.environ["TODOKU_TEST_HOME"]), postgres_dsn)
    with fresh_database(postgres_dsn, template=template) as url:
        world = World("postgres", url)
        world.sql("create table shop_order (id integer primary key, note text)")
        world.close()
        yield url


@pytest.fixture
def shop(kind: type[Caller], request: pytest.FixtureRequest) -> Iterator[World]:
    """The database of the kind, migrated and empty, with a table of the caller's own."""
    if kind.backend == "sqlite":
        copy_migrated(request.getfixturevalue("sqlite_url"))
        world = World("sqlite", request.getfixturevalue("sqlite_url"))
        world.store.migrate()
        world.sql("create table shop_order (id integer primary key, note text)")
    else:
        world = World("postgres", request.getfixturevalue("shared_postgres_url"))
        world.sql(";".join(f"delete from {name}" for name in ("shop_order", *(f"todoku_{name}" for name in USED))))
    yield world
    world.close()


@pytest.fixture
def box(shop: World) -> Iterator[App]:
    """An App that sends orders to two destinations, and what is moved in the stock to a third, in order."""
    app = App(shop.url)
    app.route("order.*", to="warehouse")
    app.route("order.*", to="billing")
    app.route("stock.*", to="shelf", ordered=True)
    yield app
    app.close()


@pytest.fixture
def caller(kind: type[Caller], shop: World) -> Iterator[Caller]:
    """User code with a connection to that database."""
    caller = kind(shop.url)
    yield caller
    caller.close()
