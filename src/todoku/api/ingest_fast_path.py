"""Handles complete POST requests directly in the HTTP protocol: without a task, an ASGI scope, or request objects.

Those would cost more than storing the event. Only plain requests take this path. All others (a body in several parts,
an unusual header, an error) go through ASGI. Clients cannot observe a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from starlette.types import ASGIApp

from todoku.api.connections import Bounds, Connections, bounds_of
from todoku.api.http_limits import LARGEST_HEAD, BoundedProtocol
from todoku.api.uvicorn_protocol import STATUS_LINE, is_tested
from todoku.core.settings import Settings

_NAME: Final = re.compile(rb"[A-Za-z0-9_-]+")

RawHeaders = Iterable[tuple[bytes, bytes]]


class Send(Protocol):
    """Sends the response to one request, once."""

    def __call__(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Sends a response. The length of `body` must match the headers."""


class FastPathHandler(Protocol):
    """Handles POST requests below a path."""

    below: bytes
    """The prefix of the path, `/ingest/`; one name follows it."""

    def take(self, name: str, headers: RawHeaders, body: bytes, send: Send) -> bool:
        """Answers through `send`, later in this event loop. Returns False, and does nothing, if it declines."""


class ServedApp:
    """An ASGI application, the handler of its fast path, and the limits for its clients."""

    def __init__(self, app: ASGIApp, fast_path: FastPathHandler | None = None, bounds: Bounds | None = None) -> None:
        self.app, self.fast_path, self.bounds = app, fast_path, bounds or bounds_of(Settings())


def protocol_options(served: ServedApp) -> dict[str, Any]:
    """Returns the options of `uvicorn.Config` that select the HTTP protocol for this application.

    A uvicorn of an untested version uses its own protocol over h11: it limits heads and the number of connections, is
    slower, takes every request through ASGI, and has no deadline for slow heads and slow readers.
    """
    if not is_tested():
        bounds = served.bounds
        return {
            "http": "h11", "h11_max_incomplete_event_size": LARGEST_HEAD, "limit_concurrency": bounds.connections,
        }  # fmt: skip
    connections = Connections(served.bounds)
    fast_path = served.fast_path
    protocol: Callable[..., BoundedProtocol] = (
        BoundedProtocol if fast_path is None else partial(FastPathProtocol, fast_path=fast_path)
    )
    return {"http": partial(protocol, connections=connections)}  # uvicorn only calls it, once per connection


class FastPathProtocol(BoundedProtocol):
    """A bounded protocol with a fast path for POST requests."""

    def __init__(self, *arguments: Any, fast_path: FastPathHandler, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._fast_path = fast_path
        self._parts: list[bytes] | None = None
        """The body of a request on the fast path so far; None: the current request goes through ASGI."""

    def data_received(self, data: bytes) -> None:
        """Parses bytes. An incomplete request falls back to ASGI, which has a deadline."""
        super().data_received(data)
        if (parts := self._parts) is not None:
            if self.refused:
                self._parts = None
            else:
                self._fall_back_to_asgi(parts)

    def head_complete(self) -> None:
        """Chooses the path of a request."""
        if self._is_plain():
            self._parts = []
        else:
            super().head_complete()

    def on_body(self, body: bytes) -> None:
        """Handles a part of a body."""
        if self._parts is None:
            super().on_body(body)
        else:
            self._has_body_part = True
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Handles the last byte of a request."""
        if (parts := self._parts) is not None and not self.refused:
            request = _FastPathRequest(self)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if self._fast_path.take(
                self.url[len(self._fast_path.below) :].decode("ascii"), self.headers, body, request.send
            ):
                self._parts = None
                self.cycle = request  # type: ignore[assignment]  # has the attributes that uvicorn reads
            else:
                self._fall_back_to_asgi(parts)
        super().on_message_complete()

    def _is_plain(self) -> bool:
        """Returns whether this is a plain POST to one name, and no earlier request is still being answered."""
        url, below = self.url, self._fast_path.below
        return (
            url.startswith(below)
            and _NAME.fullmatch(url, len(below)) is not None
            and self.parser.get_method() == b"POST"
            and self.version == "1.1"
            and self.framed
            and not self.expect_100_continue
            and not self.answering
            and not self.flow.write_paused
        )

    def _fall_back_to_asgi(self, parts: list[bytes]) -> None:
        self._parts = None
        super().head_complete()
        for part in parts:
            super().on_body(part)


class _NoEvent:
    """An event that no handler waits for: the body is complete."""

    def set(self) -> None: ...


_NO_EVENT: Final = _NoEvent()


class _FastPathRequest:
    """A request on the fast path until it is answered, with the attributes that uvicorn's protocol reads."""

    message_event = _NO_EVENT
    more_body = False
    response_started = True
    """Always, so that only `send` answers it."""

    def __init__(self, protocol: FastPathProtocol) -> None:
        self._protocol = protocol
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self.response_complete = False
        self.disconnected = False

    def send(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Sends the response, unless the client has disconnected."""
        protocol, transport = self._protocol, self._protocol.transport
        self.response_complete = True
        if self.disconnected or transport.is_closing():
            return
        parts = [STATUS_LINE[status]]
        for name, value in (*protocol.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        parts.append(body)
        transport.write(b"".join(parts))
        if not self.keep_alive:
            transport.close()
        protocol.on_response_complete()
