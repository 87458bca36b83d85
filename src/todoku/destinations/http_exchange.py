"""HTTP requests over the pooled connections of one event loop. Needs aiohttp, which is an extra."""

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
from todoku.destinations.guarded_connector import LookUp, connector, is_address, looked_up, on_behalf_of, refuse

_MAX_TARGETS: Final = 4096
"""The most parsed URLs in the cache."""

_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})

_NO_BODY: Final = "GET"
_UNTIMED: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the caller has one deadline for everything
_NO_TRACES: Final[list[Trace]] = []


class RawAnswer(msgspec.Struct, frozen=True):
    """A response, with the beginning of its body."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class _Target(msgspec.Struct, frozen=True):
    """A parsed URL: its host, its Host header, its path with query, and the key of its connections in the connector."""

    url: URL
    host: str
    host_header: str
    path: str
    key: aiohttp.ClientRequest


class Exchange:
    """The connections of one event loop, to addresses that the guard allows: without cookies, proxies, redirects and
    decompression."""

    def __init__(self, guard: Guard, look_up: LookUp | None = None) -> None:
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._connector = bound_answers(connector(guard, look_up or looked_up), self._loop)
        self._targets: dict[str, _Target] = {}

    async def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, most: int) -> RawAnswer:
        """Sends a request and returns the response with up to `most` bytes of its body; raises errors of aiohttp.

        If a pooled connection turns out to be closed, an idempotent request is repeated once.
        """
        target = self._targets.get(url) or self._target(url)
        on_behalf_of(target.host)
        try:
            return await self._ask_once(method, target, headers, body, most)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if method not in _IDEMPOTENT:
                raise
        return await self._ask_once(method, target, headers, body, most)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connector.close()

    async def _ask_once(
        self, method: str, target: _Target, headers: Mapping[str, str], body: bytes, most: int
    ) -> RawAnswer:
        connection = await self._connector.connect(target.key, _NO_TRACES, _UNTIMED)
        protocol = connection.protocol
        assert isinstance(protocol, BoundedHandler)  # noqa: S101 - it has just been connected
        try:
            lines = _header_lines(method, target, headers, body)
            await self._write(protocol, f"{method} {target.path} HTTP/1.1", lines, body)
            message, content = await _read_head(protocol, method, target)
            beginning = await _read_body(content, most)
        except BaseException:
            _abandon(connection)
            connection.close()
            raise
        _abandon(connection)
        protocol.end_answer()
        connection.release()  # closes the connection if the response has not been read to its end
        return RawAnswer(message.code, message.headers, beginning)

    async def _write(self, protocol: BoundedHandler, line: str, headers: CIMultiDict[str], body: bytes) -> None:
        """Writes the whole request, which is in memory already; the transport buffers the part that is not sent yet."""
        protocol.expect_answer()
        writer = StreamWriter(protocol, self._loop)
        await writer.write_headers(line, headers)
        if body:
            await writer.write(body, drain=False)
        writer.set_eof()

    def _target(self, text: str) -> _Target:
        url = URL(text, encoded=True)  # byte for byte as it was signed
        host = url.host or ""
        if is_address(host):  # the resolver, which has the guard, is not called for an address
            refuse(self._guard, host, host)
        key = aiohttp.ClientRequest("GET", url, loop=self._loop)
        target = _Target(url, host, url.host_port_subcomponent or "", url.raw_path_qs, key)
        if len(self._targets) >= _MAX_TARGETS:
            self._targets.clear()
        self._targets[text] = target
        return target


def _abandon(connection: Connection) -> None:
    """Aborts a connection with unsent bytes of the request: the receiver may never read them."""
    transport = connection.transport
    if transport is not None and transport.get_write_buffer_size():
        transport.abort()
        if connection.protocol is not None:
            connection.protocol.force_close()


def _header_lines(method: str, target: _Target, headers: Mapping[str, str], body: bytes) -> CIMultiDict[str]:
    """Returns the headers to send. If a name occurs in two spellings, the later one counts."""
    lines = CIMultiDict(Host=target.host_header)
    for name, value in headers.items():
        lines[name] = value
    if body or method != _NO_BODY:
        lines["Content-Length"] = str(len(body))
    return lines


async def _read_head(
    protocol: BoundedHandler, method: str, target: _Target
) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
    """Reads the head of the response; the StreamReader yields its body."""
    try:
        return await protocol.read()
    except HttpProcessingError as error:
        request = aiohttp.RequestInfo(target.url, method, CIMultiDictProxy(CIMultiDict()), target.url)
        raise aiohttp.ClientResponseError(
            request, (), status=error.code, message=error.message, headers=error.headers
        ) from error


async def _read_body(content: aiohttp.StreamReader, most: int) -> bytes:
    """Reads the body, up to `most` bytes."""
    if content.at_eof():
        return b""
    pieces, left = [], most
    while left > 0 and (piece := await content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
