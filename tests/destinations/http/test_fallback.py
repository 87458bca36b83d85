"""With an aiohttp that was not tested, or without its private names, requests are sent over its public interface.

Everything that `test_sending` proves of a request holds then, too: its tests run here a second time.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import aiohttp.client_proto
import pytest

from tests.destinations.http.conftest import outgoing, send
from tests.destinations.http.receiving import Receiver, answer
from tests.destinations.http.test_sending import *  # noqa: F403
from todoku.core.address_guard import Guard
from todoku.core.outcome import Done, Retry
from todoku.destinations.http_exchange import SessionExchange, open_exchange

WAYS = ("an older version", "a newer version", "no version", "no module", "no class", "no method", "no factory")


@pytest.fixture(autouse=True, params=WAYS)
def fallback(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"an older version": "3.12.15", "a newer version": "3.15.0", "no version": "unknown"}
    match request.param:
        case "no module":
            again(monkeypatch)
            monkeypatch.setitem(sys.modules, "aiohttp.client_proto", None)
        case "no class":
            again(monkeypatch)
            monkeypatch.delattr(aiohttp.http, "StreamWriter")
        case "no method":
            monkeypatch.setattr("todoku.destinations.aiohttp_protocol._OVERRIDDEN", ("feed_data", "gone"))
        case "no factory":
            monkeypatch.setattr(aiohttp.TCPConnector, "__getattribute__", without_factory)
        case way:
            monkeypatch.setattr(aiohttp, "__version__", versions[way])


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our modules over private names are imported again."""
    for name in ("aiohttp_protocol", "pooled_exchange"):
        monkeypatch.delitem(sys.modules, f"todoku.destinations.{name}", raising=False)


def without_factory(connector: aiohttp.TCPConnector, name: str) -> object:
    """As `_factory` of a connector that has none, as far as our module is concerned."""
    if name == "_factory" and "aiohttp_protocol" in sys._getframe(1).f_code.co_filename:
        raise AttributeError(name)
    return object.__getattribute__(connector, name)


def test_it_is_the_public_interface() -> None:
    async def opened() -> type:
        exchange = open_exchange(Guard())
        await exchange.aclose()
        return type(exchange)

    assert asyncio.run(opened()) is SessionExchange


def test_a_connection_is_used_again_unless_more_comes_than_is_read(receiver: Receiver) -> None:
    assert send(*[outgoing(receiver.url) for _ in range(3)]) == [Done()] * 3
    assert receiver.connections == 1
    receiver.reply = answer(500, b"x" * (1 << 20))
    assert all(isinstance(outcome, Retry) for outcome in send(outgoing(receiver.url), outgoing(receiver.url)))
    assert receiver.connections >= 3
