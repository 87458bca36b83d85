"""Who asks, and whether they may: bearer tokens with scopes, denied by default.

A route says what it needs; one that says nothing is refused, whoever asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, Protocol
from urllib.parse import parse_qsl

import msgspec
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from todoku.api.auth_failures import Failures
from todoku.api.connections import network_of
from todoku.api.problem import Refused
from todoku.core.proxies import NO_PROXIES, Proxies
from todoku.core.scope import Scope, allows
from todoku.engine.observability.metrics import Metrics

_MOST: Final = 10_000
"""So many buckets are remembered; the one that was asked longest ago is forgotten, which fills it."""


class Taken(msgspec.Struct, frozen=True):
    """Whether there was one to take, how many are left of how many, and the seconds until there is one again."""

    ok: bool
    limit: int
    left: int
    wait: float


class RateBuckets:
    """Buckets that hold `size` each and get `rate` a second. Asked from one event loop only."""

    def __init__(self, *, rate: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._known: LRUCache[str, tuple[float, float]] = LRUCache(_MOST)

    def take(self, name: str) -> Taken:
        """Take one out of the bucket of this name."""
        level, now = self._level(name)
        ok = level >= 1
        level -= ok
        self._known[name] = (level, now)
        return self._taken(ok, level)

    def look(self, name: str) -> Taken:
        """Whether there is one to take; nothing is taken."""
        level, _ = self._level(name)
        return self._taken(level >= 1, level)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._clock()
        level, at = self._known.get(name, (float(self._size), now))
        return min(float(self._size), level + (now - at) * self._rate), now

    def _taken(self, ok: bool, level: float) -> Taken:
        return Taken(ok, self._size, int(level), 0.0 if level >= 1 else (1 - level) / self._rate)


def rate_headers(taken: Taken, now: float) -> dict[str, str]:
    """What a caller is told with a 429, in the words of QStash. `now`: unix seconds."""
    return {
        "burst-ratelimit-limit": str(taken.limit),
        "burst-ratelimit-remaining": str(taken.left),
        "burst-ratelimit-reset": str(math.ceil(now + taken.wait)),
        "retry-after": str(max(1, math.ceil(taken.wait))),
    }


Access = Scope | Literal["open"]
"""What a route needs. "open": no token, because it tells nothing secret, or has its own proof of who asks."""

Endpoint = Callable[[Request], Awaitable[Response]] | Callable[[Request], Response]

_REMEMBERED: Final = 4096
_FAILURES: Final = 20
"""An address may be wrong so often at once, and then once a second: after that its wrong tokens are told to wait."""

_LOOKUPS: Final = 4
_SUSPECT_LOOKUPS: Final = 2
"""Tokens that were never seen to be right and are looked up at the same time: of everybody, and of addresses that have
been wrong too often. There are 32 threads for all requests."""

_BEARER: Final = "todoku_bearer"
_CALLER: Final = "todoku_caller"
_IN_QUERY: Final = "qstash_token"


class Bearer(Protocol):
    """What is known of whoever has a token."""

    @property
    def name(self) -> str:
        """Who it was made for: acts are signed with it."""

    @property
    def prefix(self) -> str:
        """How the token begins: by this people tell it from others of the same name."""

    @property
    def scopes(self) -> Collection[str]:
        """What it allows."""


class Checking(Protocol):
    """Who knows tokens (engine.http.tokens.Tokens)."""

    def check(self, text: str) -> Bearer | None:
        """Whose token this is; None: nobody's. It may ask the database."""

    def recall(self, text: str) -> tuple[bool, Bearer | None]:
        """Whether `check` needs no query now, and its answer then."""


class Gate:
    """Lets requests through, or raises Refused: 401 without a token, 403 without the scope, 429 too often.

    A right token always passes, however many wrong ones are tried beside it, also from its own address. Used from one
    event loop, which never waits for the database here.
    """

    def __init__(
        self,
        tokens: Checking,
        *,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        proxies: Proxies = NO_PROXIES,
        failures: Failures | None = None,
    ) -> None:
        self._tokens = tokens
        self._rates = RateBuckets(rate=rate, size=max(1, int(2 * rate)), clock=clock)
        self._wrong = RateBuckets(rate=1.0, size=_FAILURES, clock=clock)
        self._right: LRUCache[bytes, bool] = LRUCache(_REMEMBERED)
        self._proxies = proxies
        self._failures = failures or Failures(Metrics())
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._suspect_lookups = asyncio.Semaphore(_SUSPECT_LOOKUPS)

    async def admit(self, request: Request, needed: Scope) -> Bearer:
        """Whoever asks, if they may."""
        caller = self._caller(request)
        setattr(request.state, _CALLER, caller)
        address, plain = network_of(caller), _presented(request)
        if plain is None:
            hint = "send Authorization: Bearer …; `todoku tokens create` makes one"
            raise self._failed(_unknown("a token is needed", hint), address)
        bearer = await self._known(plain, address)
        taken = self._rates.take(bearer.prefix or bearer.name)
        if not taken.ok:
            raise _too_often("too many requests with this token", taken)
        if not allows(bearer.scopes, needed):
            has = ", ".join(sorted(bearer.scopes)) or "nothing"
            refused = Refused(403, f"this needs the scope {needed}, the token {bearer.name!r} has {has}")
            raise self._failed(refused, address)
        return bearer

    async def _known(self, plain: str, address: str) -> Bearer:
        # What is kept in memory is a digest: no token is found in a dump of it.
        digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
        is_cached, bearer = self._tokens.recall(plain)
        if not is_cached:
            if digest in self._right:
                bearer = await asyncio.to_thread(self._tokens.check, plain)
            else:
                bearer = await self._looked_up(plain, address)
        if bearer is None:
            self._right.pop(digest, None)
            raise self._failed(self._refusal(address), address)
        self._right[digest] = True
        return bearer

    async def _looked_up(self, plain: str, address: str) -> Bearer | None:
        """Whose token this is, if it was never seen to be right. Such tokens share a few look-ups at a time, and those
        of an address that has been wrong too often share fewer: guesses keep neither threads nor the database busy.
        """
        lookups = self._lookups if self._wrong.look(address).ok else self._suspect_lookups
        async with lookups:
            is_cached, bearer = self._tokens.recall(plain)  # the same one may have been looked up during the wait
            return bearer if is_cached else await asyncio.to_thread(self._tokens.check, plain)

    def _refusal(self, address: str) -> Refused:
        taken = self._wrong.take(address)
        if not taken.ok:
            return _too_often("too many wrong tokens from this address", taken)
        return _unknown("the token is not known", "it may have expired or been revoked: `todoku tokens list`")

    def _failed(self, refused: Refused, address: str) -> Refused:
        self._failures.note(refused.status, address)
        return refused

    def _caller(self, request: Request) -> str:
        peer = request.client.host if request.client is not None else ""
        return self._proxies.caller(peer, request.headers.getlist("x-forwarded-for"))


class Guarded(Route):
    """A route that says what it needs. A function that is not async runs in a thread: it may wait for the database."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        *,
        methods: list[str],
        access: Access,
        gate: Gate | None = None,
        unless: Callable[[Request], bool] | None = None,
    ) -> None:
        """`unless`: says of a request whether it needs no token here."""
        self.access: Access = access
        if gate is None and access != "open":
            raise TypeError(f"{path} needs the scope {access}, and nobody looks")

        async def admitted(request: Request) -> Response:
            if gate is not None and access != "open" and not (unless is not None and unless(request)):
                setattr(request.state, _BEARER, await gate.admit(request, access))
            return await _answered(endpoint, request)

        super().__init__(path, admitted, methods=methods, name=getattr(endpoint, "__name__", path))
        self.methods = set(methods)  # and no HEAD beside GET: a route has the methods it declares


def bearer_of(request: Request) -> Bearer:
    """Whose token let this request in."""
    found: Bearer = getattr(request.state, _BEARER)
    return found


def caller_of(request: Request) -> str | None:
    """The address that a request with a token came from, as far as it is known."""
    return getattr(request.state, _CALLER, None) or None


def denying(routes: Iterable[BaseRoute]) -> list[Route]:
    """The routes, where any that does not say what it needs refuses everybody."""
    return [route if isinstance(route, Guarded) else _refusing(route) for route in routes]


def _refusing(route: BaseRoute) -> Route:
    def refused(_: Request) -> Response:
        raise Refused(403, "this route says nothing of who may use it")

    return Route(str(getattr(route, "path", "/{rest:path}")), refused)


async def _answered(endpoint: Any, request: Request) -> Response:
    answer: Response
    if iscoroutinefunction(endpoint):
        answer = await endpoint(request)
    else:
        answer = await asyncio.to_thread(endpoint, request)
    return answer


def _presented(request: Request) -> str | None:
    """The token as it was sent: in its header, or in the query of /v2, where a webhook can have no header."""
    given = request.headers.getlist("authorization")
    if given:
        scheme, _, token = given[0].strip().partition(" ")
        return token.strip() or None if len(given) == 1 and scheme.lower() == "bearer" else None
    if not request.scope["path"].startswith("/v2/"):
        return None
    return dict(parse_qsl(request.scope["query_string"].decode("latin-1"))).get(_IN_QUERY)


def _unknown(message: str, hint: str) -> Refused:
    return Refused(401, message, hint=hint, headers={"www-authenticate": 'Bearer realm="todoku"'})


def _too_often(message: str, taken: Taken) -> Refused:
    return Refused(429, message, hint="wait as long as Retry-After says", headers=rate_headers(taken, time.time()))
