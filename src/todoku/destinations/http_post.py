"""Sends one HTTP request within its deadline, over pooled connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import msgspec

from todoku.core.address_guard import Guard, check_url
from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Response, kept_response
from todoku.core.settings import Settings

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp
    from todoku.destinations.http_exchange import Exchange

READ_BYTES: Final = 64 << 10
"""The most bytes of a response body that are read. A connection with more of it is closed."""


class OutgoingPost(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request, ready to be sent."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    only_status: bool = False
    """The caller needs only the status of a successful response."""


class ReceiverAnswer(msgspec.Struct, frozen=True):
    """A response: all its headers, to classify it by, and the part that is stored."""

    headers: dict[str, str]
    kept: Response


class Poster:
    """Sends requests. Each event loop has its own pool of connections, created when it is first needed."""

    def __init__(self, settings: Settings, look_up: LookUp | None = None) -> None:
        self._look_up = look_up
        self._guard = Guard(settings.http_allow, settings.http_loopback)
        self._rewrites = rewrites(settings.http_rewrite)
        self._rewrite_guard = Guard(settings.http_allow, loopback=True)
        self._exchanges: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Guard, Exchange]] = WeakKeyDictionary()

    async def post(self, post: OutgoingPost) -> ReceiverAnswer:
        """Returns the receiver's response; raises TimeoutError or an error of aiohttp."""
        url, guard, headers = self._rewrite(post) if self._rewrites else (post.url, self._guard, post.headers)
        async with asyncio.timeout(post.timeout):
            answer = await self._exchange(guard).ask(post.method, url, headers, post.body, most=READ_BYTES)
        if post.only_status and 200 <= answer.status < 300:
            return ReceiverAnswer({}, Response(answer.status))
        return ReceiverAnswer(dict(answer.headers), kept_response(answer.status, answer.headers.items(), answer.body))

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        for exchange in self._exchanges.pop(asyncio.get_running_loop(), {}).values():
            await exchange.aclose()

    def _exchange(self, guard: Guard) -> Exchange:
        exchanges = self._exchanges.get(loop := asyncio.get_running_loop())
        if exchanges is None:
            exchanges = self._exchanges[loop] = {}
        if guard not in exchanges:
            # aiohttp is an extra, so the module that needs it is imported when the first request is sent.
            exchanges[guard] = import_module("todoku.destinations.http_exchange").Exchange(guard, self._look_up)
        return exchanges[guard]

    def _rewrite(self, post: OutgoingPost) -> tuple[str, Guard, Mapping[str, str]]:
        """For development: sends a request for one origin to another, with the Host header of the first."""
        for origin, replacement in self._rewrites.items():
            if post.url == origin or post.url.startswith((f"{origin}/", f"{origin}?")):
                host = origin.partition("://")[2]
                return replacement + post.url[len(origin) :], self._rewrite_guard, {**post.headers, "Host": host}
        return post.url, self._guard, post.headers


def rewrites(given: tuple[str, ...]) -> dict[str, str]:
    """Parses the setting http_rewrite into a mapping of origins; raises InvalidSetting."""
    found = {}
    for entry in given:
        origin, equals, replacement = entry.partition("=")
        if not equals:
            raise InvalidSetting(f"http_rewrite cannot be {entry!r}", hint="https://host=http://127.0.0.1:9001")
        found[_origin(origin)] = _origin(replacement)
    return found


def _origin(text: str) -> str:
    return check_url(text.strip(), what="http_rewrite").rstrip("/")
