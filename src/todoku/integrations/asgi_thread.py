"""Calls an ASGI application from a WSGI one: in an event loop of its own, one response at a time for each caller."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

_EVENTS: Final = b"text/event-stream"


class WsgiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as a WSGI framework has it. `root`: the part of `path` below which the ASGI application is."""

    method: str
    path: str
    root: str
    query: bytes
    headers: tuple[tuple[str, str], ...]
    body: bytes
    scheme: str
    client: str
    more: dict[str, Any] = {}
    """Further entries of the scope."""


class WsgiResponse(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class AsgiThread:
    """An ASGI application in a thread of this process, started by the first call. Thread-safe."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop
        self._app: Any

    def call(self, request: WsgiRequest) -> WsgiResponse:
        """Returns the response. It blocks, like everything in WSGI."""
        with self._lock:
            if self._pid != os.getpid():  # a server may fork after it has loaded the application
                self._app, self._loop = self._create(), asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="todoku-web", daemon=True).start()
                self._pid = os.getpid()
        return asyncio.run_coroutine_threadsafe(_call(self._app, request), self._loop).result()


async def _call(app: Any, request: WsgiRequest) -> WsgiResponse:
    exchange = _Exchange(request.body)
    task = asyncio.create_task(app(_scope(request), exchange.receive, exchange.send))
    streams = asyncio.create_task(exchange.streams.wait())
    await asyncio.wait((task, streams), return_when=asyncio.FIRST_COMPLETED)
    streams.cancel()
    if not task.done():  # events never end, and would hold a thread of the server: the page then asks again by itself
        task.cancel()
        return WsgiResponse(204, (), b"")
    await task
    return WsgiResponse(exchange.status, tuple(exchange.headers), b"".join(exchange.parts))


class _Exchange:
    """The messages of one request, as ASGI has them."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.streams = asyncio.Event()
        self.status = 500
        self.headers: list[tuple[str, str]] = []
        self.parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()  # the caller stays until the end
        body, self._body = self._body, None
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            if any(name == b"content-type" and value.startswith(_EVENTS) for name, value in message["headers"]):
                self.streams.set()
        else:
            self.parts.append(message.get("body", b""))


def _scope(request: WsgiRequest) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": request.root,
        "query_string": request.query,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in request.headers
        ],
        "client": (request.client, 0) if request.client else None,
        "server": None,
        "state": {},
        **request.more,
    }
