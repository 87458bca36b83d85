"""One request over HTTP: sent within its deadline, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Response, kept_response
from todoku.core.settings import Settings
from todoku.core.ssrf import Guard, check_url

if TYPE_CHECKING:
    import aiohttp

    from todoku.destinations.guarded import LookUp

READ_BYTES: Final = 64 << 10
"""So much of an answer's body is read. What it goes on to say is cut off, with its connection."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, complete."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    only_status: bool = False
    """Of a success nobody wants to know more."""


class Answer(msgspec.Struct, frozen=True):
    """What came back: all headers, for who decides by them, and what is kept of it."""

    headers: dict[str, str]
    kept: Response


class Poster:
    """Sends posts. One pooled session an event loop, made when it is first needed."""

    def __init__(self, settings: Settings, look_up: LookUp | None = None) -> None:
        self._look_up = look_up
        self._net: Any = None
        self._guard = Guard(settings.http_allow, settings.http_loopback)
        self._rewrites = rewrites(settings.http_rewrite)
        self._own = Guard(settings.http_allow, loopback=True)
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Guard, aiohttp.ClientSession]] = (
            WeakKeyDictionary()
        )

    async def post(self, post: Post) -> Answer:
        """What the receiver answered. TimeoutError, or whatever aiohttp raises: it did not."""
        net = self._net or self._loaded()
        to, guard, headers = self._rewritten(post)
        url = net.URL(to, encoded=True)  # byte for byte as it was signed
        host = url.host or ""
        if net.is_address(host):  # nobody looks it up
            net.refuse(guard, host, host)
        net.on_behalf_of(host)
        async with (
            asyncio.timeout(post.timeout),
            self._session(guard).request(
                post.method, url, data=post.body or None, headers=headers, allow_redirects=False
            ) as answer,
        ):
            body = await _read(answer.content)
            if post.only_status and 200 <= answer.status < 300:
                return Answer({}, Response(answer.status))
            return Answer(dict(answer.headers), kept_response(answer.status, answer.headers.items(), body))

    async def aclose(self) -> None:
        """End the connections of this event loop."""
        for session in self._sessions.pop(asyncio.get_running_loop(), {}).values():
            await session.close()

    def _session(self, guard: Guard) -> aiohttp.ClientSession:
        sessions = self._sessions.setdefault(asyncio.get_running_loop(), {})
        if guard not in sessions:
            net = self._loaded()
            sessions[guard] = net.session(guard, self._look_up or net.looked_up)
        return sessions[guard]

    def _loaded(self) -> Any:
        """What aiohttp is needed for, an extra: loaded when the first request is sent, and not for each of them."""
        self._net = import_module("todoku.destinations.guarded")
        return self._net

    def _rewritten(self, post: Post) -> tuple[str, Guard, Mapping[str, str]]:
        """For development: what is for one origin goes to another, which is asked as if it were the first."""
        for given, instead in self._rewrites.items():
            if post.url == given or post.url.startswith((f"{given}/", f"{given}?")):
                host = given.partition("://")[2]
                return instead + post.url[len(given) :], self._own, {**post.headers, "Host": host}
        return post.url, self._guard, post.headers


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The body, or as much of it as is wanted."""
    pieces, left = [], READ_BYTES
    while left > 0 and (piece := await content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


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
