"""Posts that come whole, taken where they are parsed: without a task, a scope, or objects for request and answer.

Those would cost more than storing what was posted. Only what is plain goes this way. Whatever is not, be it a body that
comes in parts, an unusual header or an error, goes the ordinary one through ASGI. Nobody outside can tell them apart.
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
    """Answers one request, once."""

    def __call__(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Send this. A body is as long as the headers say."""


class Taker(Protocol):
    """Takes what is posted below a path."""

    below: bytes
    """`/ingest/`: what the path begins with, and nothing after it but one name."""

    def take(self, name: str, headers: RawHeaders, body: bytes, send: Send) -> bool:
        """Answer by `send`, later and in this event loop. False: it was not taken, and nothing was done."""


class Served:
    """An ASGI application, who takes posts past it, and what its clients are allowed."""

    def __init__(self, app: ASGIApp, taker: Taker | None = None, bounds: Bounds | None = None) -> None:
        self.app, self.taker, self.bounds = app, taker, bounds or bounds_of(Settings())


def protocol_options(served: Served) -> dict[str, Any]:
    """The options of `uvicorn.Config` by which it speaks HTTP for this application.

    A uvicorn that was not tested speaks HTTP by itself, through h11: it bounds heads and the number of connections, is
    slower, takes every post through ASGI, and waits for slow heads and slow readers for ever.
    """
    if not is_tested():
        bounds = served.bounds
        return {
            "http": "h11", "h11_max_incomplete_event_size": LARGEST_HEAD, "limit_concurrency": bounds.connections,
        }  # fmt: skip
    connections = Connections(served.bounds)
    taker = served.taker
    speaking: Callable[..., BoundedProtocol] = (
        BoundedProtocol if taker is None else partial(StraightProtocol, taker=taker)
    )
    return {"http": partial(speaking, connections=connections)}  # uvicorn calls it to make one, and does nothing else


class StraightProtocol(BoundedProtocol):
    """A bounded protocol with a short way for posts."""

    def __init__(self, *arguments: Any, taker: Taker, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._taker = taker
        self._parts: list[bytes] | None = None
        """The body of a post so far; None: there is no post, or it goes the ordinary way."""

    def data_received(self, data: bytes) -> None:
        """Some bytes. A post that is not whole now goes the ordinary way, which has a deadline."""
        super().data_received(data)
        if (parts := self._parts) is not None:
            if self.refused:
                self._parts = None
            else:
                self._go_the_ordinary_way(parts)

    def head_complete(self) -> None:
        """The head of a post, or of something else."""
        if self._is_plain():
            self._parts = []
        else:
            super().head_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if self._parts is None:
            super().on_body(body)
        else:
            self._body_came = True
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if (parts := self._parts) is not None and not self.refused:
            posted = _Posted(self)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if self._taker.take(self.url[len(self._taker.below) :].decode("ascii"), self.headers, body, posted.send):
                self._parts = None
                self.cycle = posted  # type: ignore[assignment]  # uvicorn's own code asks it as it asks its own
            else:
                self._go_the_ordinary_way(parts)
        super().on_message_complete()

    def _is_plain(self) -> bool:
        """Whether this is an ordinary post to one name. One that comes before the last was answered waits its turn."""
        url, below = self.url, self._taker.below
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

    def _go_the_ordinary_way(self, parts: list[bytes]) -> None:
        self._parts = None
        super().head_complete()
        for part in parts:
            super().on_body(part)


class _Nobody:
    """Nobody waits for more of a body."""

    def set(self) -> None: ...


_NOBODY: Final = _Nobody()


class _Posted:
    """A post until it is answered: what uvicorn's protocol wants to know of a request."""

    message_event = _NOBODY
    more_body = False
    response_started = True
    """Only `send` answers it."""

    def __init__(self, protocol: StraightProtocol) -> None:
        self._protocol = protocol
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self.response_complete = False
        self.disconnected = False

    def send(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Answer it, unless whoever sent it is gone."""
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
