"""HTTP/1.1 on a connection, with bounds that uvicorn leaves open: how large a head may be, and how slow.

What is refused here never became a request, so its answer has no request id but its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from todoku.api.problem import MEDIA_TYPE, problem_bytes
from todoku.app import new_id

HEAD_WITHIN: Final = 10.0
"""Seconds for the whole head of a request, from its connection or its first byte on."""

LARGEST_HEAD: Final = 96 << 10
LARGEST_URL: Final = 16 << 10
MOST_HEADERS: Final = 256

_LINGERS: Final = 2.0
"""Seconds during which what still comes is thrown away: closing at once would take the answer back."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, bounded."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._came = self._came_first = 0
        self._in_head = True
        self._mid_message = False
        self._refused = False

    # ---------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first head must come in time."""
        super().connection_made(_Lingering(transport, self))  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes. What cannot be understood is answered with 400, and nothing is logged: anybody can send it."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._came = len(data)
        if self._in_head:
            self._head_size += self._came
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to nothing: it is an ordinary request
        except httptools.HttpParserError:
            self._refuse(400, "this is no HTTP request that can be understood")
        if self._in_head and self._head_size > LARGEST_HEAD:
            self._refuse(431, f"the head of a request may have {LARGEST_HEAD} bytes")
        elif self._in_head and self._head_timer is None and not (self.answering or self._refused):
            self._await_head()  # only now: nearly every head comes whole, and needs no timer

    # -------------------------------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head, self._mid_message, self._head_size, self._came_first = True, True, 0, self._came
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there: it is a request, unless it is too large."""
        self._in_head = False
        self._head_came()
        if len(self.url) > LARGEST_URL:
            self._refuse(414, f"a URL may have {LARGEST_URL} bytes")
        elif len(self.headers) > MOST_HEADERS or self._has_large_head():
            self._refuse(431, f"a request may have {MOST_HEADERS} headers and {LARGEST_HEAD} bytes of them")
        else:
            self.head_complete()

    def head_complete(self) -> None:
        """The head is there, and within bounds: it is served as ASGI has it."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._mid_message = False
        self._in_head = True
        if not self._refused:
            super().on_message_complete()

    @property
    def refused(self) -> bool:
        """Whether an answer was given that ends the connection."""
        return self._refused

    @property
    def answering(self) -> bool:
        """Whether a request has not been answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def mid_message(self) -> bool:
        """Whether the other side may still be sending a request."""
        return self._mid_message

    # ------------------------------------------------------------------------------------------ inside

    def _has_large_head(self) -> bool:
        if self._came_first + self._head_size <= LARGEST_HEAD:  # with all that came beside it, as nearly always
            return False
        return sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WITHIN, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.answering:
            self._await_head()  # an earlier request is still being answered
        else:
            self._refuse(408, f"the head of the request did not come within {HEAD_WITHIN:g} s")

    def _refuse(self, status: int, detail: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._head_came()
        if not self.answering:  # else half an answer may be out
            request_id = str(new_id())
            body = problem_bytes(status, detail, request_id)
            head = (
                f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
                "cache-control: no-store\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()


class _Lingering:
    """A transport that, while the other side may still be sending, says goodbye before it hangs up."""

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether it was closed, be it that it lingers."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close it: now, or once the other side has had time to read the answer."""
        if self._closing or self._transport.is_closing():
            return
        self._closing = True
        if not self._protocol.mid_message or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._protocol.loop.call_later(_LINGERS, self._transport.close)
