"""Connections of a sender: when one is used again, when a request is repeated, and what comes before an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest

from todoku.core.address_guard import Guard
from todoku.destinations.guarded_connector import look_up_host
from todoku.destinations.http_exchange import Exchange, SessionExchange, open_exchange
from todoku.destinations.pooled_exchange import PooledExchange

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answering = Callable[[int, int], bytes | None]
"""The answer to a request, by the number of its connection and its own on that; None: the connection is closed."""
Asking = Callable[[Exchange, str], Awaitable[list[int]]]


def talk(
    answering: Answering, asking: Asking, *, reads_bodies: bool = True, opened: Callable[..., Exchange] = PooledExchange
) -> tuple[list[int], int]:
    """What `asking` returned, and over how many connections."""
    connections = 0
    over, served = asyncio.Event(), set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        served.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # nobody asks any more
            await converse(reader, writer, connections)
        writer.transport.abort()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: int) -> None:
        number = 0
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            if reads_bodies:
                await reader.readexactly(length)
            number += 1
            if (said := answering(mine, number)) is None:
                return
            writer.write(said)
            if not reads_bodies and length > 1:
                await over.wait()
                return

    async def run() -> list[int]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        exchange: Exchange = opened(Guard(loopback=True), look_up_host)
        try:
            return await asking(exchange, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        finally:
            await exchange.aclose()
            server.close()
            over.set()
            await asyncio.gather(*filter(None, served))
            await asyncio.sleep(0)  # so that the transports have ended, too

    return asyncio.run(run()), connections


async def ask(exchange: Exchange, url: str, method: str = "POST", body: bytes = b"x") -> int:
    return (await exchange.ask(method, url, {}, body, most=1000)).status


def test_the_fast_exchange_is_the_one_for_the_versions_that_were_tested() -> None:
    async def opened() -> type[Exchange]:
        exchange = open_exchange(Guard())
        await exchange.aclose()
        return type(exchange)

    assert asyncio.run(opened()) is PooledExchange


def test_who_answers_before_the_end_of_a_request_is_heard_and_its_connection_ended() -> None:
    """The rest may never be read, so the next request does not wait behind it."""

    async def asking(exchange: Exchange, url: str) -> list[int]:
        return [await ask(exchange, url, body=bytes(64 << 20)), await ask(exchange, url)]

    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    assert talk(lambda _connection, _number: early, asking, reads_bodies=False) == ([413, 413], 2)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("opened", [PooledExchange, SessionExchange])
def test_a_connection_that_was_closed_meanwhile_costs_no_attempt_of_what_can_be_repeated(
    method: str, opened: Callable[..., Exchange]
) -> None:
    async def asking(exchange: Exchange, url: str) -> list[int]:
        return [await ask(exchange, url, method) for _ in range(2)]

    assert talk(lambda _connection, number: OK if number == 1 else None, asking, opened=opened) == ([200, 200], 2)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("opened", [PooledExchange, SessionExchange])
def test_what_may_do_something_twice_is_not_repeated(method: str, opened: Callable[..., Exchange]) -> None:
    """The receiver may have done it: that is for the next attempt, which says that it is one."""

    async def asking(exchange: Exchange, url: str) -> list[int]:
        statuses = [await ask(exchange, url, method)]
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await ask(exchange, url, method)
        return statuses

    assert talk(lambda _connection, number: OK if number == 1 else None, asking, opened=opened) == ([200], 1)


@pytest.mark.parametrize("opened", [PooledExchange, SessionExchange])
def test_what_only_announces_an_answer_is_none(opened: Callable[..., Exchange]) -> None:
    async def asking(exchange: Exchange, url: str) -> list[int]:
        return [await ask(exchange, url) for _ in range(2)]

    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert talk(lambda _connection, _number: hints + OK, asking, opened=opened) == ([200, 200], 1)


def test_many_urls_are_forgotten_and_asked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.destinations.pooled_exchange._WAYS", 2)

    async def asking(exchange: Exchange, url: str) -> list[int]:
        return [await ask(exchange, f"{url}?{number % 3}") for number in range(6)]

    assert talk(lambda _connection, _number: OK, asking) == ([200] * 6, 1)
