"""One HTTP request over pooled connections: sent within its deadline, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from todoku.core.address_guard import Guard, check_url
from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Response, kept_response
from todoku.core.settings import Settings
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

_WAYS: Final = 4096
"""So many URLs are remembered as they were read."""

_AGAIN: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods of which the second request does nothing that the first has not done."""

_NO_BODY: Final = "GET"
_UNTIMED: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the sender has one deadline over everything
_NO_TRACES: Final[list[Trace]] = []


class RawAnswer(msgspec.Struct, frozen=True):
    """What came back: of its body as much as was wanted."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class _Way(msgspec.Struct, frozen=True):
    """A URL as it was read: the host it is for, what is asked of it, and how the connector knows its connections."""

    url: URL
    host: str
    said: str
    target: str
    key: aiohttp.ClientRequest


class Exchange:
    """The connections of one event loop, to where the guard lets them: no cookies, no proxy, no redirect, nothing
    unpacked."""

    def __init__(self, guard: Guard, look_up: LookUp | None = None) -> None:
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._connector = bound_answers(connector(guard, look_up or looked_up), self._loop)
        self._ways: dict[str, _Way] = {}

    async def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, most: int) -> RawAnswer:
        """What the receiver answered, and up to `most` bytes of its body. Or whatever aiohttp raises.

        A connection that was closed by then says nothing about its receiver: what can be repeated is, once.
        """
        way = self._ways.get(url) or self._way(url)
        on_behalf_of(way.host)
        try:
            return await self._asked(method, way, headers, body, most)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if method not in _AGAIN:
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
            await self._write(protocol, f"{method} {way.target} HTTP/1.1", _lines(method, way, headers, body), body)
            message, content = await _answer(protocol, method, way)
            came = await _read(content, most)
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


def _lines(method: str, way: _Way, headers: Mapping[str, str], body: bytes) -> CIMultiDict[str]:
    """The headers as they are sent. Of a name in two spellings the later one counts."""
    lines = CIMultiDict(Host=way.said)
    for name, value in headers.items():
        lines[name] = value
    if body or method != _NO_BODY:
        lines["Content-Length"] = str(len(body))
    return lines


async def _answer(protocol: BoundedHandler, method: str, way: _Way) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
    """The head of the answer."""
    try:
        return await protocol.read()
    except HttpProcessingError as error:
        asked = aiohttp.RequestInfo(way.url, method, CIMultiDictProxy(CIMultiDict()), way.url)
        raise aiohttp.ClientResponseError(
            asked, (), status=error.code, message=error.message, headers=error.headers
        ) from error


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    """The body, or as much of it as is wanted."""
    if content.at_eof():
        return b""
    pieces, left = [], most
    while left > 0 and (piece := await content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp
    from todoku.destinations.http_post import Exchange

READ_BYTES: Final = 64 << 10
"""So much of an answer's body is read. What it goes on to say is cut off, with its connection."""


class OutgoingPost(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, complete."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    only_status: bool = False
    """Of a success nobody wants to know more."""


class ReceiverAnswer(msgspec.Struct, frozen=True):
    """What came back: all headers, for who decides by them, and what is kept of it."""

    headers: dict[str, str]
    kept: Response


class Poster:
    """Sends posts. Pooled connections an event loop, made when it is first needed."""

    def __init__(self, settings: Settings, look_up: LookUp | None = None) -> None:
        self._look_up = look_up
        self._guard = Guard(settings.http_allow, settings.http_loopback)
        self._rewrites = rewrites(settings.http_rewrite)
        self._own = Guard(settings.http_allow, loopback=True)
        self._exchanges: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Guard, Exchange]] = WeakKeyDictionary()

    async def post(self, post: OutgoingPost) -> ReceiverAnswer:
        """What the receiver answered. TimeoutError, or whatever aiohttp raises: it did not."""
        to, guard, headers = self._rewritten(post) if self._rewrites else (post.url, self._guard, post.headers)
        async with asyncio.timeout(post.timeout):
            asked = await self._exchange(guard).ask(post.method, to, headers, post.body, most=READ_BYTES)
        if post.only_status and 200 <= asked.status < 300:
            return ReceiverAnswer({}, Response(asked.status))
        return ReceiverAnswer(dict(asked.headers), kept_response(asked.status, asked.headers.items(), asked.body))

    async def aclose(self) -> None:
        """End the connections of this event loop."""
        for exchange in self._exchanges.pop(asyncio.get_running_loop(), {}).values():
            await exchange.aclose()

    def _exchange(self, guard: Guard) -> Exchange:
        exchanges = self._exchanges.get(loop := asyncio.get_running_loop())
        if exchanges is None:
            exchanges = self._exchanges[loop] = {}
        if guard not in exchanges:
            # aiohttp is an extra: loaded when the first request is sent.
            exchanges[guard] = import_module("todoku.destinations.http_post").Exchange(guard, self._look_up)
        return exchanges[guard]

    def _rewritten(self, post: OutgoingPost) -> tuple[str, Guard, Mapping[str, str]]:
        """For development: what is for one origin goes to another, which is asked as if it were the first."""
        for given, instead in self._rewrites.items():
            if post.url == given or post.url.startswith((f"{given}/", f"{given}?")):
                host = given.partition("://")[2]
                return instead + post.url[len(given) :], self._own, {**post.headers, "Host": host}
        return post.url, self._guard, post.headers


def rewrites(given: tuple[str, ...]) -> dict[str, str]:
    """The setting http_rewrite: from which origin to which."""
    found = {}
    for entry in given:
        origin, equals, instead = entry.partition("=")
        if not equals:
            raise InvalidSetting(f"http_rewrite cannot be {entry!r}", hint="https://host=http://127.0.0.1:9001")
        found[_origin(origin)] = _origin(instead)
    return found


def _origin(text: str) -> str:
    return check_url(text.strip(), what="http_rewrite").rstrip("/")
