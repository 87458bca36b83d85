"""A real daemon on each database, a receiver, and the three clients that were never told it is not QStash."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from qstash import AsyncQStash, QStash

from tests.api.qstash.receiving import Receiver, receiver
from tests.daemon.running import Daemon, shop_at
from tests.support.nodejs import NodeClient, node_client
from tests.support.postgres import fresh_database, template_database
from todoku.app import App

TOKEN = "a-token-of-the-tests-0123456789"
CURRENT, NEXT = "sig_current_key_of_the_tests_000", "sig_next_key_of_the_tests_000000"


@dataclass(frozen=True)
class Server:
    """A daemon, its database, and a receiver it may send to."""

    daemon: Daemon
    box: App
    receiver: Receiver
    raw: httpx.Client

    @property
    def url(self) -> str:
        return self.daemon.url

    def to(self, path: str) -> str:
        """A URL at the receiver."""
        return f"{self.receiver.url}{path}"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("sqlite", marks=pytest.mark.xdist_group("qstash-sqlite")),
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.xdist_group("qstash-postgres")]),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`todoku run` with a token and signing keys, on SQLite and on PostgreSQL."""
    home = tmp_path_factory.mktemp("qstash")
    with ExitStack() as stack:
        url = f"sqlite:///{home}/todoku.db"
        if request.param == "postgres":
            dsn = request.getfixturevalue("postgres_dsn")
            template = template_database(Path(os.environ["TODOKU_TEST_HOME"]), dsn)
            url = stack.enter_context(fresh_database(dsn, template=template))
        shop = stack.enter_context(shop_at(home, url))
        shop.box.migrate()
        daemon = shop.run(
            "--workers", "1", TODOKU_TOKEN=TOKEN, TODOKU_SIGNING_KEYS=f"{CURRENT},{NEXT}", TODOKU_HTTP_LOOPBACK="true",
            TODOKU_API_RATE="10000",
        )  # fmt: skip
        raw = httpx.Client(
            base_url=daemon.url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60
        )
        yield Server(daemon, shop.box, stack.enter_context(receiver()), stack.enter_context(raw))


@pytest.fixture
def raw(server: Server) -> httpx.Client:
    """Plain HTTP, for what no client would send."""
    return server.raw


@pytest.fixture
def client(server: Server) -> Iterator[QStash]:
    """The official client for Python. It has no way to be closed: that is done behind its back."""
    client = QStash(TOKEN, base_url=server.url, retry=False)
    yield client
    client.http._client.close()


@pytest.fixture
async def aclient(server: Server) -> AsyncIterator[AsyncQStash]:
    """Its twin for async code."""
    client = AsyncQStash(TOKEN, base_url=server.url, retry=False)
    yield client
    await client.http._client.aclose()


@pytest.fixture(scope="session")
def node(server: Server) -> Iterator[NodeClient]:
    """The official client for Node."""
    with node_client(server.url, TOKEN) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name nobody else has: of a queue, a group, a key, a label."""
    return f"n-{uuid4().hex[:12]}"


@pytest.fixture
def path(name: str) -> str:
    """A path at the receiver that nobody else uses."""
    return f"/{name}"
