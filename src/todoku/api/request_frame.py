"""Wraps every request: assigns its id, returns the id in the response, and answers every error with a problem."""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from todoku.api.body import BODY_TIMEOUT, BODY_TIMEOUT_STATE
from todoku.api.problem import ErrorResponse, error_response, problem_response
from todoku.engine.observability.log import Log
from todoku.engine.random_bytes import random_16

_ACCEPTABLE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:+/=@~-]{0,127}")
_STATE: Final = "todoku_request_id"


class RequestFrame:
    """An ASGI application that adds `X-Request-Id` to each response of `app` and answers errors with problems.

    `within`: the seconds that the body of a request may take to arrive.
    """

    def __init__(self, app: ASGIApp, *, within: float = BODY_TIMEOUT) -> None:
        self._app, self._within = app, within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return
        request_id = request_id_from(scope["headers"])
        scope.setdefault("state", {}).update({_STATE: request_id, BODY_TIMEOUT_STATE: self._within})
        scope["app"] = self  # so that routing raises for an unknown path, which then becomes a problem too
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # the client waits for a response to any error
            described = handle_error(error, request_id, scope["method"], scope["path"])
            if started:
                raise  # the response has begun: the server closes the connection
            await problem_response(described, request_id)(scope, receive, send_with_id)


def request_id(request: Request) -> str:
    """Returns the id of a request: the caller's if it was acceptable."""
    return request_id_of(request.scope)


def request_id_of(scope: Scope) -> str:
    """Like `request_id`, without a `Request`."""
    state: MutableMapping[str, Any] = scope["state"]
    return str(state[_STATE])


def request_id_from(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the id for a request with these headers: the caller's if acceptable, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ACCEPTABLE.fullmatch(value):
            return str(value.decode("ascii"))
    return random_16().hex()


def handle_error(error: Exception, request_id: str, method: str, path: str) -> ErrorResponse:
    """Returns the response for an error; logs an unexpected one."""
    described = error_response(error)
    if described.unexpected:
        Log(request_id=request_id, method=method, path=_loggable(path)).error("REQUEST_FAILED", exc_info=error)
    return described


def _loggable(path: str) -> str:
    """Returns the first parts of a path: the rest may be a URL that contains a secret."""
    return "/".join(path.split("/")[:4])
