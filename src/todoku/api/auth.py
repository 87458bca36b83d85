"""Who asks, and whether they may: bearer tokens with scopes, denied by default.

A route says what it needs; one that says nothing is refused, whoever asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from todoku.api.problem import Refused
from todoku.api.rate import Buckets, Taken, rate_headers
from todoku.core.scope import Scope, allows

Access = Scope | Literal["open"]
"""What a route needs. "open": no token, because it tells nothing secret, or has its own proof of who asks."""

Endpoint = Callable[[Request], Awaitable[Response]] | Callable[[Request], Response]

_REMEMBERED: Final = 4096
_FAILURES: Final = 20
"""An address may be wrong so often at once, and then once a second."""

_BEARER: Final = "todoku_bearer"
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

    def remembered(self, text: str) -> bool:
        """Whether `check` asks nobody now."""


class Gate:
    """Lets requests through, or raises Refused: 401 without a token, 403 without the scope, 429 too often.

    Used from one event loop, which never waits for the database here.
    """

    def __init__(self, tokens: Checking, *, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._rates = Buckets(rate=rate, size=max(1, int(2 * rate)), clock=clock)
        self._failures = Buckets(rate=1.0, size=_FAILURES, clock=clock)
        self._right: OrderedDict[bytes, None] = OrderedDict()

    async def admit(self, request: Request, needed: Scope) -> Bearer:
        """Whoever asks, if they may."""
        plain = _presented(request)
        if plain is None:
            raise _unknown("a token is needed", "send Authorization: Bearer …; `todoku tokens create` makes one")
        bearer = await self._known(plain, _address(request))
        taken = self._rates.take(bearer.prefix or bearer.name)
        if not taken.ok:
            raise _too_often("too many requests with this token", taken)
        if not allows(bearer.scopes, needed):
            has = ", ".join(sorted(bearer.scopes)) or "nothing"
            raise Refused(403, f"this needs the scope {needed}, the token {bearer.name!r} has {has}")
        return bearer

    async def _known(self, plain: str, address: str) -> Bearer:
        # What is kept in memory is a digest: no token is found in a dump of it.
        digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
        # Whoever was right before is let in even while others at the same address guess.
        if digest not in self._right and not (left := self._failures.look(address)).ok:
            raise _too_often("too many wrong tokens from this address", left)
        if self._tokens.remembered(plain):
            bearer = self._tokens.check(plain)
        else:
            bearer = await asyncio.to_thread(self._tokens.check, plain)
        if bearer is None:
            self._right.pop(digest, None)
            self._failures.take(address)
            raise _unknown("the token is not known", "it may have expired or been revoked: `todoku tokens list`")
        self._right[digest] = None
        self._right.move_to_end(digest)
        if len(self._right) > _REMEMBERED:
            self._right.popitem(last=False)
        return bearer


class Guarded(Route):
    """A route that says what it needs. A function that is not async runs in a thread: it may wait for the database."""

    def __init__(
        self, path: str, endpoint: Endpoint, *, methods: list[str], access: Access, gate: Gate | None = None
    ) -> None:
        self.access: Access = access
        if gate is None and access != "open":
            raise TypeError(f"{path} needs the scope {access}, and nobody looks")

        async def admitted(request: Request) -> Response:
            if gate is not None and access != "open":
                setattr(request.state, _BEARER, await gate.admit(request, access))
            return await _answered(endpoint, request)

        super().__init__(path, admitted, methods=methods, name=getattr(endpoint, "__name__", path))
        self.methods = set(methods)  # and no HEAD beside GET: a route has the methods it declares


def bearer_of(request: Request) -> Bearer:
    """Whose token let this request in."""
    found: Bearer = getattr(request.state, _BEARER)
    return found


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


def _address(request: Request) -> str:
    """Where it comes from. Of IPv6 the network: an attacker has all of it."""
    host = request.client.host if request.client is not None else ""
    return ":".join(host.split(":")[:4]) if ":" in host else host


def _unknown(message: str, hint: str) -> Refused:
    return Refused(401, message, hint=hint, headers={"www-authenticate": 'Bearer realm="todoku"'})


def _too_often(message: str, taken: Taken) -> Refused:
    return Refused(429, message, hint="wait as long as Retry-After says", headers=rate_headers(taken, time.time()))
