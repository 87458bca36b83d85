"""A receiver that answers as it is told: for trying things out on one machine, with nothing of one's own to call.

/200 /404 /500 …   that status; ?sleep=ms waits before it
/489               the answer that makes a dead letter at once
/slow?ms=3000      200, later                     /hang       no answer
/flaky?times=2     500 so often for each message, then 200
/busy?after=5      429 and Retry-After            /redirect   302
/echo              200, and what came as JSON     /received   what came last, as JSON
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from todoku.api.body import read_body
from todoku.api.problem import Refused
from todoku.core.control_characters import encode_json
from todoku.core.http_request import canonical
from todoku.core.signature import verify_upstash

_LARGEST: Final = 16 << 20
_KEPT: Final = 200
_LONGEST_WAIT_MS: Final = 600_000
_DONT_RETRY: Final = {"upstash-nonretryable-error": "true"}
_NON_RETRYABLE: Final = 489
_WITHOUT_BODY: Final = frozenset({204, 205, 304})
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request that came."""

    at: float
    method: str
    path: str
    message_id: str | None
    retried: str | None
    signed: bool
    """Its Upstash-Signature is one of ours, for exactly this body."""
    size: int


class Receiver:
    """The receiver as an ASGI application. `keys`: what requests to it are signed with."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._received: deque[Received] = deque(maxlen=_KEPT)
        self._times: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        answer = await self._answer(request)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        part = request.url.path.split("/")[1]
        if part == "":
            return PlainTextResponse(__doc__ or "")
        if part == "received":
            return _json([msgspec.to_builtins(one) for one in self._received])
        body = await read_body(request, limit=_LARGEST)
        self._received.append(self._noted(request, body))
        if part.isdecimal() and part.isascii():
            return await _status(request, int(part))
        if part == "flaky":
            return self._flaky(request)
        if part == "echo":
            return _echo(request, body)
        if script := _SCRIPTS.get(part):
            return await script(request)
        raise Refused(404, f"nothing is scripted for /{part}", hint="GET / says what is")

    def _noted(self, request: Request, body: bytes) -> Received:
        query = request.url.query
        given = request.headers.get("upstash-signature", "")
        now = time.time()
        return Received(
            at=now,
            method=request.method,
            path=request.url.path + (f"?{query}" if query else ""),
            message_id=request.headers.get("upstash-message-id"),
            retried=request.headers.get("upstash-retried"),
            signed=verify_upstash(given, body, keys=self._keys, now=now),
            size=len(body),
        )

    def _flaky(self, request: Request) -> Response:
        """By message, so that each of them fails as often; without an id they count as one."""
        message = request.headers.get("upstash-message-id", "")
        self._times[message] += 1
        return _said(500 if self._times[message] <= _number(request, "times", 2, most=1000) else 200)


async def _status(request: Request, status: int) -> Response:
    if not 200 <= status <= 599:
        raise Refused(404, f"{status} is no status to answer with", hint="200 to 599")
    await _wait(_number(request, "sleep", 0, most=_LONGEST_WAIT_MS))
    return _said(status)


async def _slow(request: Request) -> Response:
    await _wait(_number(request, "ms", 3000, most=_LONGEST_WAIT_MS))
    return _said(200)


async def _hang(_: Request) -> Response:
    await _wait(_LONGEST_WAIT_MS)
    return _said(200)


async def _busy(request: Request) -> Response:
    return _said(429, {"retry-after": str(_number(request, "after", 5, most=86_400))})


async def _redirect(_: Request) -> Response:
    return _said(302, {"location": "/200"})


_SCRIPTS: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
    "slow": _slow, "hang": _hang, "busy": _busy, "redirect": _redirect,
}  # fmt: skip


def _echo(request: Request, body: bytes) -> Response:
    headers = {canonical(name): value for name, value in request.headers.items()}
    return _json({"method": request.method, "headers": headers, "body": body.decode("utf-8", "replace")})


async def _wait(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


def _said(status: int, headers: dict[str, str] | None = None) -> Response:
    """The status, with its name as text: `404 Not Found`."""
    told = (headers or {}) | (_DONT_RETRY if status == _NON_RETRYABLE else {})
    if status in _WITHOUT_BODY:
        return Response(status_code=status, headers=told)
    return PlainTextResponse(f"{status} {_PHRASES.get(status, 'Scripted')}", status, told)


def _number(request: Request, name: str, default: int, *, most: int) -> int:
    given = request.query_params.get(name, str(default))
    if not (given.isdecimal() and given.isascii() and len(given) < 10 and int(given) <= most):
        raise Refused(400, f"{name} cannot be {given[:32]!r}", hint=f"a whole number from 0 to {most}")
    return int(given)


def _json(body: object) -> Response:
    return Response(encode_json(body), media_type="application/json")
