"""Authentication and authorization: bearer tokens with scopes, denied by default.

Each route declares the scope it needs. A route that declares none refuses every request.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from todoku.api.connections import network_of
from todoku.api.problem import Refused
from todoku.core.proxies import NO_PROXIES, Proxies
from todoku.core.scope import Scope, allows
from todoku.engine.http.api_tokens import Token, TokenChecker
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Metrics

if TYPE_CHECKING:
    from todoku.api.shared_levels import SharedLevels

# ------------------------------------------------------------
# Requests refused because of their token: each is counted; a log line every few seconds summarizes them.

EVERY: Final = 10.0
"""Seconds between two log lines, so that a flood of wrong tokens does not flood the log."""

_MAX_ADDRESSES: Final = 1000
"""Addresses that one line counts separately; the rest are counted as `others`."""

OTHERS: Final = "others"


class AuthFailures:
    """Counts and logs authentication failures. For one event loop only."""

    def __init__(self, metrics: Metrics, *, every: float = EVERY) -> None:
        self._metrics, self._every = metrics, every
        self._statuses: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, status: int, address: str) -> None:
        """Counts a request from this address that was refused with this status."""
        self._metrics.add(counting.AUTH_FAILURES, 1, str(status))
        self._statuses[str(status)] += 1
        is_separate = address in self._addresses or len(self._addresses) < _MAX_ADDRESSES
        self._addresses[address if is_separate else OTHERS] += 1
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            loop.call_later(self._every, self._log)

    def _log(self) -> None:
        statuses, addresses = dict(self._statuses), self._addresses
        self._loop, self._statuses, self._addresses = None, Counter(), Counter()
        ((most, number),) = addresses.most_common(1)
        Log().warning(
            "AUTH_FAILED", number=sum(statuses.values()), statuses=statuses, addresses=len(addresses),
            most_from=most, most_number=number, seconds=self._every,
        )  # fmt: skip


_MOST_BUCKETS: Final = 10_000
"""The largest number of buckets. Evicting the least recently used one has the effect of filling it."""


class TakeResult(msgspec.Struct, frozen=True):
    """Whether the bucket had a permit, how many are left of `limit`, and the seconds until the next one."""

    ok: bool
    limit: int
    left: int
    wait: float


class RateBuckets:
    """Token buckets by name: each holds `size` permits and gains `rate` per second. For one event loop only.

    `shared`: where several processes count together.
    """

    def __init__(
        self, *, rate: float, size: int, clock: Callable[[], float] = time.monotonic, shared: SharedLevels | None = None
    ) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._levels: LRUCache[str, tuple[float, float]] | SharedLevels = shared or LRUCache(_MOST_BUCKETS)
        self._lock: Callable[[], AbstractContextManager[None]] = nullcontext if shared is None else shared.lock

    def take(self, name: str) -> TakeResult:
        """Takes a permit from the bucket of this name, if there is one."""
        with self._lock():
            level, now = self._level(name)
            ok = level >= 1
            level -= ok
            self._levels[name] = (level, now)
        return self._result(ok, level)

    def peek(self, name: str) -> TakeResult:
        """Returns the state of the bucket without taking a permit."""
        level, _ = self._level(name)
        return self._result(level >= 1, level)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._clock()
        level, at = self._levels.get(name, (float(self._size), now))
        return min(float(self._size), level + (now - at) * self._rate), now

    def _result(self, ok: bool, level: float) -> TakeResult:
        return TakeResult(ok, self._size, int(level), 0.0 if level >= 1 else (1 - level) / self._rate)


def rate_headers(taken: TakeResult, now: float) -> dict[str, str]:
    """Returns the headers of a 429, named as by QStash. `now`: unix seconds."""
    return {
        "burst-ratelimit-limit": str(taken.limit),
        "burst-ratelimit-remaining": str(taken.left),
        "burst-ratelimit-reset": str(math.ceil(now + taken.wait)),
        "retry-after": str(max(1, math.ceil(taken.wait))),
    }


Access = Scope | Literal["open"]
"""The scope a route needs. "open": no token, because it returns nothing secret or verifies the caller otherwise."""

Endpoint = Callable[[Request], Awaitable[Response]] | Callable[[Request], Response]

_MOST_DIGESTS: Final = 4096
_FAILURES: Final = 20
"""Wrong tokens an address may send in a burst, then one per second; further ones are answered with 429."""

_LOOKUPS: Final = 4
_SUSPECT_LOOKUPS: Final = 2
"""Concurrent lookups of tokens not yet verified: for all addresses, and for those that sent too many wrong tokens. All
requests share 32 threads."""

_WRONG: Final = "too many wrong tokens from this address"
_BEARER: Final = "todoku_bearer"
_CALLER: Final = "todoku_caller"
_IN_QUERY: Final = "qstash_token"


class GateCounts(msgspec.Struct, frozen=True):
    """Where a gate counts the requests of each token and the wrong tokens of each address; None: in its own memory."""

    requests: SharedLevels | None = None
    wrong: SharedLevels | None = None


COUNTS_APART: Final = GateCounts()
"""For a gate that counts alone."""


class Gate:
    """Admits requests, or raises Refused: 401 without a valid token, 403 without the scope, 429 over the rate.

    A valid token always passes, however many wrong ones are sent meanwhile, even from the same address. Used from one
    event loop, which it never blocks with a query.
    """

    def __init__(
        self,
        tokens: TokenChecker,
        *,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        proxies: Proxies = NO_PROXIES,
        failures: AuthFailures | None = None,
        counts: GateCounts = COUNTS_APART,
    ) -> None:
        self._tokens = tokens
        self._rates = RateBuckets(rate=rate, size=max(1, int(2 * rate)), clock=clock, shared=counts.requests)
        self._wrong = RateBuckets(rate=1.0, size=_FAILURES, clock=clock, shared=counts.wrong)
        self._right: LRUCache[bytes, bool] = LRUCache(_MOST_DIGESTS)
        self._proxies = proxies
        self._failures = failures or AuthFailures(Metrics())
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._suspect_lookups = asyncio.Semaphore(_SUSPECT_LOOKUPS)

    async def admit(self, request: Request, needed: Scope) -> Token:
        """Returns the holder of the request's token, or raises Refused."""
        caller = self._caller(request)
        setattr(request.state, _CALLER, caller)
        address, plain = network_of(caller), _token_of(request)
        if plain is None:
            hint = "send Authorization: Bearer …; `todoku tokens create` creates a token"
            raise self._note_failure(_unauthorized("a token is required", hint), address)
        bearer = await self._check(plain, address)
        taken = self._rates.take(bearer.prefix or bearer.name)
        if not taken.ok:
            raise _too_often("too many requests with this token", taken)
        if not allows(bearer.scopes, needed):
            has = ", ".join(sorted(bearer.scopes)) or "nothing"
            refused = Refused(403, f"this needs the scope {needed}, the token {bearer.name!r} has {has}")
            raise self._note_failure(refused, address)
        return bearer

    async def admit_by_secret(self, request: Request, find: Callable[[], str | None]) -> str:
        """Returns the name that `find` has for the secret in a request's URL, or raises Refused: 404, or 429.

        `find` blocks. Wrong secrets cost a caller and the database no more than wrong tokens do.
        """
        address = self.network(request)
        async with self._lookups if self._wrong.peek(address).ok else self._suspect_lookups:
            name = await asyncio.to_thread(find)
        if name is None:
            taken = self._wrong.take(address)
            refused = Refused(404, "this path does not exist")
            raise self._note_failure(refused if taken.ok else _too_often(_WRONG, taken), address)
        if not (taken := self._rates.take(name)).ok:
            raise _too_often("too many requests to this URL", taken)
        return name

    async def identify(self, request: Request, plain: str) -> Token:
        """Returns the holder of a token that a form contains, or raises Refused: 401 or 429."""
        return await self._check(plain, self.network(request))

    def network(self, request: Request) -> str:
        """Returns the address that counts as the caller of a request, as `network_of` gives it."""
        return network_of(self._caller(request))

    def note_failure(self, status: int, network: str) -> None:
        """Counts and logs that a person was refused."""
        self._failures.note(status, network)

    async def _check(self, plain: str, address: str) -> Token:
        # Only digests are stored in memory, so that a memory dump contains no token.
        digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
        is_cached, bearer = self._tokens.recall(plain)
        if not is_cached:
            if digest in self._right:
                bearer = await asyncio.to_thread(self._tokens.check, plain)
            else:
                bearer = await self._look_up(plain, address)
        if bearer is None:
            self._right.pop(digest, None)
            raise self._note_failure(self._refusal(address), address)
        self._right[digest] = True
        return bearer

    async def _look_up(self, plain: str, address: str) -> Token | None:
        """Returns the holder of a token that was not verified before.

        Such lookups share a small limit, and those from addresses with too many wrong tokens a smaller one, so that
        guessing occupies neither the threads nor the database.
        """
        lookups = self._lookups if self._wrong.peek(address).ok else self._suspect_lookups
        async with lookups:
            is_cached, bearer = self._tokens.recall(plain)  # another request may have looked it up meanwhile
            return bearer if is_cached else await asyncio.to_thread(self._tokens.check, plain)

    def _refusal(self, address: str) -> Refused:
        taken = self._wrong.take(address)
        if not taken.ok:
            return _too_often(_WRONG, taken)
        return _unauthorized("the token is not known", "it may have expired or been revoked: `todoku tokens list`")

    def _note_failure(self, refused: Refused, address: str) -> Refused:
        self._failures.note(refused.status, address)
        return refused

    def _caller(self, request: Request) -> str:
        peer = request.client.host if request.client is not None else ""
        return self._proxies.caller(peer, request.headers.getlist("x-forwarded-for"))


class GuardedRoute(Route):
    """A route that declares the scope it needs. An endpoint that is not async runs in a thread and may block."""

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
        """`unless`: returns whether a request needs no token here."""
        self.access: Access = access
        if gate is None and access != "open":
            raise TypeError(f"{path} needs the scope {access}, but has no gate to check it")

        async def admit_and_serve(request: Request) -> Response:
            if gate is not None and access != "open" and not (unless is not None and unless(request)):
                setattr(request.state, _BEARER, await gate.admit(request, access))
            return await _serve(endpoint, request)

        super().__init__(path, admit_and_serve, methods=methods, name=getattr(endpoint, "__name__", path))
        self.methods = set(methods)  # Starlette would add HEAD to GET


def bearer_of(request: Request) -> Token:
    """Returns the holder of the token with which this request was admitted."""
    found: Token = getattr(request.state, _BEARER)
    return found


def caller_of(request: Request) -> str | None:
    """Returns the address a request with a token came from, if known."""
    return getattr(request.state, _CALLER, None) or None


def deny_undeclared(routes: Iterable[BaseRoute]) -> list[Route]:
    """Returns the routes; those that do not declare a scope are replaced by ones that refuse every request."""
    return [route if isinstance(route, GuardedRoute) else _denied_route(route) for route in routes]


def _denied_route(route: BaseRoute) -> Route:
    def refuse(_: Request) -> Response:
        raise Refused(403, "this route does not declare the scope it needs")

    return Route(str(getattr(route, "path", "/{rest:path}")), refuse)


async def _serve(endpoint: Any, request: Request) -> Response:
    response: Response
    if iscoroutinefunction(endpoint):
        response = await endpoint(request)
    else:
        response = await asyncio.to_thread(endpoint, request)
    return response


def _token_of(request: Request) -> str | None:
    """Returns the token from the header or, below /v2, from the query, for webhooks that cannot set headers."""
    values = request.headers.getlist("authorization")
    if values:
        scheme, _, token = values[0].strip().partition(" ")
        return token.strip() or None if len(values) == 1 and scheme.lower() == "bearer" else None
    if not request.scope["path"].startswith("/v2/"):
        return None
    return dict(parse_qsl(request.scope["query_string"].decode("latin-1"))).get(_IN_QUERY)


def _unauthorized(message: str, hint: str) -> Refused:
    return Refused(401, message, hint=hint, headers={"www-authenticate": 'Bearer realm="todoku"'})


def _too_often(message: str, taken: TakeResult) -> Refused:
    return Refused(429, message, hint="wait as long as Retry-After says", headers=rate_headers(taken, time.time()))
