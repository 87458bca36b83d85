"""An App on each database, and somebody who posts to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest

import todoku
from tests.ingest.signers import KINDS, Kind, event
from tests.support.world import World

T = TypeVar("T")
STRIPE = KINDS[0]


class Poster:
    """Posts to an App's sources, as their servers do."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        async def run() -> T:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ingest") as client:
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


@pytest.fixture
def poster(box: todoku.App) -> Poster:
    return Poster(box.ingest_app)
