"""Around every request: an id that goes in and out, and an answer whatever happens inside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from todoku.api.body import READ_WITHIN, WITHIN_STATE
from todoku.api.problem import Told, answer, told
from todoku.engine.observability.log import Log

_SANE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:+/=@~-]{0,127}")
_STATE: Final = "todoku_request_id"


class Framed:
    """An ASGI application that answers each request of `app`'s with its `X-Request-Id`, and errors as problems.

    `within`: the seconds that the body of a request may take.
    """

    def __init__(self, app: ASGIApp, *, within: float = READ_WITHIN) -> None:
        self._app, self._within = app, within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        request_id = id_for(scope["headers"])
        scope.setdefault("state", {}).update({_STATE: request_id, WITHIN_STATE: self._within})
        scope["app"] = self  # so that routing raises what it has no route for, and it becomes a problem, too
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # whatever it is, somebody waits for an answer
            said = said_of(error, request_id, scope["method"], scope["path"])
            if started:
                raise  # half an answer is out: the connection is closed
            await answer(said, request_id)(scope, receive, sending)


def request_id(request: Request) -> str:
    """The id of a request: the caller's own if it was sane."""
    return id_of(request.scope)


def id_of(scope: Scope) -> str:
    """As `request_id`, of a request that nobody has made an object of."""
    state: MutableMapping[str, Any] = scope["state"]
    return str(state[_STATE])


def id_for(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id of a request with these headers: the caller's own if that is sane, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value.decode("ascii"))
    return os.urandom(16).hex()


def said_of(error: Exception, request_id: str, method: str, path: str) -> Told:
    """What is said of an error to whoever asked; what nobody expected is in the log."""
    said = told(error)
    if said.unexpected:
        Log(request_id=request_id, method=method, path=_shown(path)).error("REQUEST_FAILED", exc_info=error)
    return said


def _shown(path: str) -> str:
    """Which resource, never more: a path may hold a URL with somebody's secret in it, as a query may."""
    return "/".join(path.split("/")[:4])
