"""A receiver whose response is determined by the path, for development without an endpoint of one's own.

/200 /404 /500 …   that status; ?sleep=ms waits before it
/489               the response that creates a dead letter at once
/slow?ms=3000      200 after a delay              /hang       no response
/flaky?times=2     500 that many times per message, then 200
/busy?after=5      429 with Retry-After           /redirect   302
/echo              200 with the request as JSON   /received   the last requests as JSON
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
_MOST_RECEIVED: Final = 200
_LONGEST_WAIT_MS: Final = 600_000
_DONT_RETRY: Final = {"upstash-nonretryable-error": "true"}
_NON_RETRYABLE: Final = 489
_WITHOUT_BODY: Final = frozenset({204, 205, 304})
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request that the receiver got."""

    at: float
    method: str
    path: str
    message_id: str | None
    retried: str | None
    signed: bool
    """Whether its Upstash-Signature is valid for this body."""
    size: int


class Receiver:
    """The receiver as an ASGI application. `keys`: the signing keys of requests to it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._received: deque[Received] = deque(maxlen=_MOST_RECEIVED)
        self._times: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        part = request.url.path.split("/")[1]
        if part == "":
            return PlainTextResponse(__doc__ or "")
        if part == "received":
            return _json([msgspec.to_builtins(one) for one in self._received])
        body = await read_body(request, limit=_LARGEST)
        self._received.append(self._describe(request, body))
        if part.isdecimal() and part.isascii():
            return await _status(request, int(part))
        if part == "flaky":
            return self._flaky(request)
        if part == "echo":
            return _echo(request, body)
        if script := _SCRIPTS.get(part):
            return await script(request)
        raise Refused(404, f"/{part} is not a path of this receiver", hint="GET / lists its paths")

    def _describe(self, request: Request, body: bytes) -> Received:
        query = request.url.query
        signature = request.headers.get("upstash-signature", "")
        now = time.time()
        return Received(
            at=now,
            method=request.method,
            path=request.url.path + (f"?{query}" if query else ""),
            message_id=request.headers.get("upstash-message-id"),
            retried=request.headers.get("upstash-retried"),
            signed=verify_upstash(signature, body, keys=self._keys, now=now),
            size=len(body),
        )

    def _flaky(self, request: Request) -> Response:
        """Fails the first requests of each message; requests without an id count as one message."""
        message = request.headers.get("upstash-message-id", "")
        self._times[message] += 1
        return _status_response(500 if self._times[message] <= _number(request, "times", 2, most=1000) else 200)


async def _status(request: Request, status: int) -> Response:
    if not 200 <= status <= 599:
        raise Refused(404, f"{status} is not a status of a response", hint="use 200 to 599")
    await _wait(_number(request, "sleep", 0, most=_LONGEST_WAIT_MS))
    return _status_response(status)


async def _slow(request: Request) -> Response:
    await _wait(_number(request, "ms", 3000, most=_LONGEST_WAIT_MS))
    return _status_response(200)


async def _hang(_: Request) -> Response:
    await _wait(_LONGEST_WAIT_MS)
    return _status_response(200)


async def _busy(request: Request) -> Response:
    return _status_response(429, {"retry-after": str(_number(request, "after", 5, most=86_400))})


async def _redirect(_: Request) -> Response:
    return _status_response(302, {"location": "/200"})


_SCRIPTS: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
    "slow": _slow, "hang": _hang, "busy": _busy, "redirect": _redirect,
}  # fmt: skip


def _echo(request: Request, body: bytes) -> Response:
    headers = {canonical(name): value for name, value in request.headers.items()}
    return _json({"method": request.method, "headers": headers, "body": body.decode("utf-8", "replace")})


async def _wait(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


def _status_response(status: int, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with this status and its name as text: `404 Not Found`."""
    all_headers = (headers or {}) | (_DONT_RETRY if status == _NON_RETRYABLE else {})
    if status in _WITHOUT_BODY:
        return Response(status_code=status, headers=all_headers)
    return PlainTextResponse(f"{status} {_PHRASES.get(status, 'Scripted')}", status, all_headers)


def _number(request: Request, name: str, default: int, *, most: int) -> int:
    given = request.query_params.get(name, str(default))
    if not (given.isdecimal() and given.isascii() and len(given) < 10 and int(given) <= most):
        raise Refused(400, f"{name} cannot be {given[:32]!r}", hint=f"use a whole number from 0 to {most}")
    return int(given)


def _json(body: object) -> Response:
    return Response(encode_json(body), media_type="application/json")
