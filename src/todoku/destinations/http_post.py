"""One HTTP request: sent within its deadline, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import msgspec

from todoku.core.address_guard import Guard, check_url
from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Response, trim_response
from todoku.core.settings import Settings

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp
    from todoku.destinations.http_exchange import Exchange

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
        return ReceiverAnswer(dict(asked.headers), trim_response(asked.status, asked.headers.items(), asked.body))

    async def aclose(self) -> None:
        """End the connections of this event loop."""
        for exchange in self._exchanges.pop(asyncio.get_running_loop(), {}).values():
            await exchange.aclose()

    def _exchange(self, guard: Guard) -> Exchange:
        exchanges = self._exchanges.get(loop := asyncio.get_running_loop())
        if exchanges is None:
            exchanges = self._exchanges[loop] = {}
        if guard not in exchanges:
            from todoku.destinations.http_exchange import open_exchange  # noqa: PLC0415 - aiohttp is an extra

            exchanges[guard] = open_exchange(guard, self._look_up)
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
