"""Requests over the pooled connections of one event loop, and the choice of how aiohttp is used for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import aiohttp
import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from todoku.core.address_guard import Guard
from todoku.destinations.guarded_connector import LookUp, create_connector, is_address, look_up_host, refuse, set_host

AGAIN: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods of which the second request does nothing that the first has not done."""

_NO_BODY: Final = "GET"
_LONGEST_FIELD: Final = 8190
_OURS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that a session would add by itself."""


class RawAnswer(msgspec.Struct, frozen=True):
    """What came back: of its body as much as was wanted."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class Exchange(Protocol):
    """The connections of one event loop, to where the guard lets them: no cookies, no proxy, no redirect, nothing
    unpacked."""

    async def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, most: int) -> RawAnswer:
        """What the receiver answered, and up to `most` bytes of its body. Or whatever aiohttp raises."""

    async def aclose(self) -> None:
        """End the connections."""


def open_exchange(guard: Guard, look_up: LookUp | None = None) -> Exchange:
    """The fast exchange where this aiohttp has the private names that it needs, and was tested; else the public one."""
    try:
        from todoku.destinations.aiohttp_protocol import is_tested  # noqa: PLC0415 - may fail, see below
        from todoku.destinations.pooled_exchange import PooledExchange  # noqa: PLC0415

        if is_tested():
            return PooledExchange(guard, look_up or look_up_host)
    except (ImportError, AttributeError):  # this aiohttp has other private names
        pass
    return SessionExchange(guard, look_up or look_up_host)


class SessionExchange:
    """An exchange over aiohttp's public interface. It sends the same and is slower.

    Of an answer it bounds the fields and the body that is read, but neither the number of interim answers (1xx) nor the
    size of all heads together: only the deadline of the attempt ends those.
    """

    def __init__(self, guard: Guard, look_up: LookUp) -> None:
        self._guard = guard
        self._session = aiohttp.ClientSession(
            connector=create_connector(guard, look_up), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False,
            skip_auto_headers=_OURS, timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            max_line_size=_LONGEST_FIELD, max_field_size=_LONGEST_FIELD,
        )  # fmt: skip

    async def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, most: int) -> RawAnswer:
        """As `Exchange.ask`. The session repeats what can be repeated on a connection that was closed by then."""
        parsed = URL(url, encoded=True)  # byte for byte as it was signed
        host = parsed.host or ""
        set_host(host)
        if is_address(host):  # it is not looked up
            refuse(self._guard, host, host)
        lines = request_headers(method, parsed.host_port_subcomponent or "", headers, body)
        answer = await self._session.request(method, parsed, headers=lines, data=body or None, allow_redirects=False)
        try:
            return RawAnswer(answer.status, answer.headers, await read_body(answer.content, most))
        finally:
            if answer.content.at_eof():
                answer.release()
            else:
                answer.close()

    async def aclose(self) -> None:
        """End the connections."""
        await self._session.close()


def request_headers(method: str, host: str, headers: Mapping[str, str], body: bytes) -> CIMultiDict[str]:
    """The headers as they are sent. Of a name in two spellings the later one counts."""
    lines = CIMultiDict(Host=host)
    for name, value in headers.items():
        lines[name] = value
    if body or method != _NO_BODY:
        lines["Content-Length"] = str(len(body))
    return lines


async def read_body(content: aiohttp.StreamReader, most: int) -> bytes:
    """The body, or its first `most` bytes."""
    if content.at_eof():
        return b""
    pieces, left = [], most
    while left > 0 and (piece := await content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
