"""The server of these tests: Debian's own where it is installed, for it is what many users have; else PyPI's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.postgres.shop import Shop
from tests.support import postgres
from tests.support.postgres import fresh_database, started_dsn
from tests.support.world import World
from todoku.engine.diagnostics.verification import verify

Make = Callable[..., str]
Open = Callable[..., Shop]


def version() -> str:
    """The server that was asked for, else Debian's, else PyPI's newest."""
    chosen = os.environ.get("TODOKU_TEST_POSTGRES_VERSION")
    return chosen or (postgres.DEBIAN if postgres.debian_binaries() else postgres.VERSION)


def started(name: str, options: str = postgres.STOCK) -> str:
    """The DSN of a server with these options, one for the whole run."""
    above = Path(os.environ["TODOKU_TEST_HOME"])
    above.chmod(0o711)  # run as root, the server is another user's, who must come through
    home = above / name
    home.mkdir(exist_ok=True)
    return started_dsn(home, options, version())


@pytest.fixture(scope="session")
def stock_dsn() -> str:
    """A server in its default configuration."""
    return started("stock")


@pytest.fixture
def make_database(stock_dsn: str) -> Iterator[Make]:
    """Makes a database with settings of its own, and the table of the shop; returns its URL. Not migrated."""
    with ExitStack() as stack:

        def make(dsn: str = stock_dsn, *, how: str = "", **settings: str) -> str:
            url = stack.enter_context(fresh_database(dsn, how=how))
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("create table shop_book (line text)")
                for name, value in settings.items():
                    change = sql.SQL("alter database {} set {} = {}")
                    words = sql.Identifier(admin.info.dbname), sql.Identifier(name), sql.Literal(value)
                    admin.execute(change.format(*words))
            return url

        yield make


@pytest.fixture
def open_shop() -> Iterator[Open]:
    """Opens a shop on a database, and migrates it unless told not to."""
    with ExitStack() as stack:

        def made(url: str, *, schema: str | None = None, migrate: bool = True) -> Shop:
            shop = Shop(url, schema=schema)
            stack.callback(shop.box.close)
            if migrate:
                shop.box.migrate()
            return shop

        yield made


@pytest.fixture
def world(postgres_url: str) -> Iterator[World]:
    """A migrated, empty database with a clock to move. After the test every invariant holds."""
    world = World("postgres", postgres_url)
    yield world
    verdicts = verify(world.store, history_ttl=86400.0, ledger_ttl=86400.0)
    world.close()
    assert [verdict.check.name for verdict in verdicts if verdict.examples] == []
