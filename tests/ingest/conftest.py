"""An App on each database, and somebody who posts to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import pytest

import todoku
from tests.ingest.signers import KINDS, Kind, event
from tests.support.serving import PLAIN, serving
from tests.support.world import World

T = TypeVar("T")
STRIPE = KINDS[0]


class Poster:
    """Posts to an App's sources, as their servers do."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self._make() as client:
                return await work(client)

        return asyncio.run(run())

    def post(self, source: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        return self.run(lambda client: client.post(f"/{source}", content=body, headers=headers))

    def send(
        self, kind: Kind = STRIPE, body: bytes | None = None, *, secret: int = 0, **headers: str
    ) -> httpx.Response:
        """An event, rightly signed."""
        body = event() if body is None else body
        return self.post(kind.name, body, {**kind.arrived(body, secret=secret).headers, **headers})


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    yield box
    box.close()


def mounted(app: Any) -> Poster:
    """Somebody who posts to an application that an endpoint was mounted in."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return Poster(lambda: httpx.AsyncClient(transport=transport, base_url="http://ingest"))


WAYS_IN = ("mounted", "daemon")
"""An endpoint has two ways in, through ASGI and straight from the wire: what holds of one holds of the other."""


@contextmanager
def posting(box: todoku.App, way_in: str) -> Iterator[Poster]:
    """Somebody who posts to this App."""
    if way_in == "mounted":
        yield mounted(box.ingest_app)
        return
    with serving(box) as server:
        yield Poster(
            lambda: httpx.AsyncClient(base_url=f"{server.url}/ingest", timeout=60, trust_env=False, verify=PLAIN)
        )


@pytest.fixture(params=WAYS_IN)
def poster(box: todoku.App, request: pytest.FixtureRequest) -> Iterator[Poster]:
    with posting(box, request.param) as poster:
        yield poster
