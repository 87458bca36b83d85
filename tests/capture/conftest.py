"""A PostgreSQL server that keeps rows in its log, one for the whole run, and a source database on it for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.capture.servers import OwnServer
from tests.capture.shop import Shop
from tests.support import postgres
from tests.support.postgres import fresh_database, started_dsn

LOGICAL = f"{postgres.FOR_TESTS} -c wal_level=logical -c max_wal_senders=20 -c max_replication_slots=40"
OpenShop = Callable[..., Shop]


def server_home(name: str) -> Path:
    """The directory of a server of this run."""
    above = Path(os.environ["TODOKU_TEST_HOME"])
    above.chmod(0o711)  # run as root, the server is another user's, who must come through
    home = above / name
    home.mkdir(exist_ok=True)
    return home


@pytest.fixture(scope="session")
def source_dsn() -> str:
    """The server of the sources."""
    return started_dsn(server_home("capture"), LOGICAL)


@pytest.fixture
def source_url(source_dsn: str) -> Iterator[str]:
    """An empty database; slots that a test leaves in it are dropped."""
    with fresh_database(source_dsn) as url:
        yield url
        drop_slots(source_dsn, url)


def drop_slots(dsn: str, url: str) -> None:
    """Drops every slot of a database, and ends its reader."""
    with psycopg.connect(url) as there:
        name = there.info.dbname
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s", (name,))
        for _ in range(100):
            try:
                admin.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", (name,)
                )
            except psycopg.errors.ObjectInUse:
                admin.execute("select pg_sleep(0.05)")
            else:
                return


@pytest.fixture
def own_server(source_dsn: str, request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A server of the test's own."""
    above = server_home("capture")
    more = getattr(request, "param", "")
    server = OwnServer(above.parent / f"capture-{uuid4().hex[:8]}", f"{LOGICAL} {more}", programs=above)
    yield server
    server.stop()
    shutil.rmtree(server.home)


@pytest.fixture
def open_shop(source_url: str, sqlite_url: str) -> Iterator[OpenShop]:
    """Opens an App that captures tables of the source; todoku's own database is SQLite unless another URL is given."""
    with ExitStack() as stack:

        def made(url: str = sqlite_url, *, source: str | None = source_url, **options: object) -> Shop:
            shop = Shop(url, source, **options)
            stack.callback(shop.close)
            return shop

        yield made


@pytest.fixture
def shop(open_shop: OpenShop) -> Shop:
    """An App that captures a source, with todoku's own database on SQLite."""
    return open_shop()
