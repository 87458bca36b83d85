"""The connections of a sender over private names of aiohttp, which saves the objects that a session makes a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from todoku.core.address_guard import Guard
from todoku.destinations.aiohttp_protocol import (
    BoundedHandler,
    Connection,
    HttpProcessingError,
    RawResponseMessage,
    StreamWriter,
    Trace,
    bound_answers,
)
from todoku.destinations.guarded_connector import LookUp, create_connector, is_address, refuse, set_host
from todoku.destinations.http_exchange import AGAIN, RawAnswer, read_body, request_headers

_WAYS: Final = 4096
"""So many URLs are remembered as they were read."""

_UNTIMED: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the sender has one deadline over everything
_NO_TRACES: Final[list[Trace]] = []


class _Way(msgspec.Struct, frozen=True):
    """A URL as it was read: the host it is for, what is asked of it, and how the connector knows its connections."""

    url: URL
    host: str
    said: str
    target: str
    key: aiohttp.ClientRequest


class PooledExchange:
    """The fast `Exchange`, which also bounds the answers in everything they may have."""

    def __init__(self, guard: Guard, look_up: LookUp) -> None:
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._connector = bound_answers(create_connector(guard, look_up), self._loop)
        self._ways: dict[str, _Way] = {}

    async def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, most: int) -> RawAnswer:
        """As `Exchange.ask`.

        A connection that was closed by then says nothing about its receiver: what can be repeated is, once.
        """
        way = self._ways.get(url) or self._way(url)
        set_host(way.host)
        try:
            return await self._asked(method, way, headers, body, most)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if method not in AGAIN:
                raise
        return await self._asked(method, way, headers, body, most)

    async def aclose(self) -> None:
        """End the connections."""
        await self._connector.close()

    async def _asked(self, method: str, way: _Way, headers: Mapping[str, str], body: bytes, most: int) -> RawAnswer:
        connection = await self._connector.connect(way.key, _NO_TRACES, _UNTIMED)
        protocol = connection.protocol
        assert isinstance(protocol, BoundedHandler)  # noqa: S101 - it has just been connected
        try:
            lines = request_headers(method, way.said, headers, body)
            await self._write(protocol, f"{method} {way.target} HTTP/1.1", lines, body)
            message, content = await _answer(protocol, method, way)
            came = await read_body(content, most)
        except BaseException:
            _abandon(connection)
            connection.close()
            raise
        _abandon(connection)
        protocol.end_answer()
        connection.release()  # if there is more of the answer, this closes it, too
        return RawAnswer(message.code, message.headers, came)

    async def _write(self, protocol: BoundedHandler, line: str, headers: CIMultiDict[str], body: bytes) -> None:
        """The whole request, which is in memory already: what does not go out now, the transport keeps."""
        protocol.expect_answer()
        writer = StreamWriter(protocol, self._loop)
        await writer.write_headers(line, headers)
        if body:
            await writer.write(body, drain=False)
        writer.set_eof()

    def _way(self, text: str) -> _Way:
        url = URL(text, encoded=True)  # byte for byte as it was signed
        host = url.host or ""
        if is_address(host):  # nobody looks it up
            refuse(self._guard, host, host)
        key = aiohttp.ClientRequest("GET", url, loop=self._loop)
        way = _Way(url, host, url.host_port_subcomponent or "", url.raw_path_qs, key)
        if len(self._ways) >= _WAYS:
            self._ways.clear()
        self._ways[text] = way
        return way


def _abandon(connection: Connection) -> None:
    """Nobody waits for the rest of a request any more: who has not read it by now may never do it."""
    transport = connection.transport
    if transport is not None and transport.get_write_buffer_size():
        transport.abort()
        if connection.protocol is not None:
            connection.protocol.force_close()


async def _answer(protocol: BoundedHandler, method: str, way: _Way) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
    """The head of the answer."""
    try:
        return await protocol.read()
    except HttpProcessingError as error:
        asked = aiohttp.RequestInfo(way.url, method, CIMultiDictProxy(CIMultiDict()), way.url)
        raise aiohttp.ClientResponseError(
            asked, (), status=error.code, message=error.message, headers=error.headers
        ) from error
