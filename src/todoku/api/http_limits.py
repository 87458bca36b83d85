"""HTTP/1.1 on a connection, with bounds that uvicorn leaves open: how large a head may be, how slow a client, and how
the end of a body is known.

What is refused here never became a request, so its answer has no request id but its own. A request whose framing is
not certain is refused and its connection closed: nothing is stored on a guess.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools

from todoku.api.connections import Bounds, Connections
from todoku.api.problem import MEDIA_TYPE, problem_bytes
from todoku.api.uvicorn_protocol import STATUS_LINE, RequestResponseCycle, UvicornProtocol
from todoku.app import new_id

LARGEST_HEAD: Final = 96 << 10
LARGEST_URL: Final = 16 << 10
MOST_HEADERS: Final = 256

_LINGERS: Final = 2.0
"""Seconds during which what still comes is thrown away: closing at once would take the answer back."""

_HEALTH: Final = (b"/healthz", b"/readyz")
"""Paths that are served even where there is room for nothing else."""

_NOTICED: Final = frozenset({b"content-length", b"transfer-encoding", b"expect"})
"""Headers that say how a body comes."""


class BoundedProtocol(UvicornProtocol):
    """uvicorn's protocol, bounded."""

    def __init__(self, *arguments: Any, connections: Connections | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open = connections or Connections(Bounds())
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._came = self._came_first = 0
        self._without_body = 0
        self._body_came = False
        self._in_head = True
        self._mid_message = False
        self._framed = self._was_framed = False
        self._keeps_alive = True
        self._upgrading = False
        self._wrong: tuple[int, str] | None = None
        self._refused = False
        self._only_health = False
        self.version = "1.1"
        """Of HTTP, in the request whose head came last."""
        self._set_parser()

    # ---------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first head must come in time."""
        super().connection_made(_Lingering(transport, self))  # type: ignore[arg-type]
        self._only_health = not self._open.admit(self, self.client[0] if self.client else "")
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended."""
        self._open.forget(self)
        self._head_came()
        self._write_resumed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes. What cannot be understood is answered with 400, and nothing is logged: anybody can send it."""
        if self._refused:
            return
        self.cancel_idle_deadline()
        self._came = len(data)
        if self._in_head:
            self._head_size += self._came
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "this is no HTTP request that can be understood")
        if not self._in_head:
            self._bound_framing()
        elif self._head_size > LARGEST_HEAD:
            self._refuse(431, f"the head of a request may have {LARGEST_HEAD} bytes")
        elif self._head_timer is None and not (self.answering or self._refused):
            self._await_head()  # only now: nearly every head comes whole, and needs no timer

    def pause_writing(self) -> None:
        """The client does not read its answer: it must go on in time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._open.bounds.receive, self.drop)

    def resume_writing(self) -> None:
        """The client reads on."""
        self._write_resumed()
        super().resume_writing()

    def drop(self) -> None:
        """End the connection now, whatever is still to be written."""
        self.transport.abort()

    # -------------------------------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head, self._mid_message, self._head_size, self._came_first = True, True, 0, self._came
        self._framed = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer behind a body in chunks, which is no header, and which no handler reads."""
        if self._in_head:
            name = name.lower()
            if name in _NOTICED:
                self._notice(name, value)
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there: it is a request, unless it is too large, or asks for what is not served."""
        self._head_came()
        if self._refused:  # with what came before it in the same segment
            return
        if (wrong := self._wrong or self._wrong_head()) is not None:
            self._refuse(*wrong)
        elif self.parser.should_upgrade():
            self._upgrading = True  # to nothing: the parser stops behind the head, which is read again without it
        else:
            self._in_head = False
            self._without_body, self._body_came = 0, False
            self.head_complete()

    def head_complete(self) -> None:
        """The head is there, and within bounds: it is served as ASGI has it."""
        super().on_headers_complete()
        # As long as its body has not come, an answer ends the connection: see on_message_complete.
        self._keeps_alive = self.cycle.keep_alive and not self._only_health
        self.set_keep_alive(False)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._body_came = True
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if self._upgrading:
            return
        self._mid_message = False
        self._in_head = True
        self._was_framed = self._framed
        if not self._refused:
            if not self.cycle.response_complete and not self.cycle.response_started:
                self.set_keep_alive(self._keeps_alive)
            super().on_message_complete()

    @property
    def refused(self) -> bool:
        """Whether an answer was given that ends the connection."""
        return self._refused

    @property
    def framed(self) -> bool:
        """Whether the request says how its body ends."""
        return self._framed

    @property
    def answering(self) -> bool:
        """Whether a request has not been answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def mid_message(self) -> bool:
        """Whether the other side may still be sending a request."""
        return self._mid_message

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn to send or to read."""
        return not self.answering or self._mid_message or self.flow.write_paused

    # ------------------------------------------------------------------------------------- one request

    def _set_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        # What follows a request that ends the connection is an error: it may be the body of one without a length.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)

    def _notice(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._framed = True
        elif name == b"expect":
            if value.lower() == b"100-continue":
                self.expect_100_continue = True
            else:
                self._wrong = (417, "Expect can be 100-continue, and nothing else")
        elif self._framed or value.lower() != b"chunked":  # twice, beside a length, or packed
            self._wrong = (400, "Transfer-Encoding can be chunked, once and without a Content-Length")
        else:
            self._framed = True

    def _wrong_head(self) -> tuple[int, str] | None:
        """Status and detail of the refusal; None: there is nothing wrong with this head."""
        if len(self.url) > LARGEST_URL:
            return 414, f"a URL may have {LARGEST_URL} bytes"
        if len(self.headers) > MOST_HEADERS or self._has_large_head():
            return 431, f"a request may have {MOST_HEADERS} headers and {LARGEST_HEAD} bytes of them"
        self.version = self.parser.get_http_version()
        if self.version != "1.1":
            if self.version != "1.0":
                return 505, "versions 1.0 and 1.1 of HTTP are spoken here"
            if any(name == b"transfer-encoding" for name, _ in self.headers):
                return 400, "HTTP/1.0 knows no Transfer-Encoding"
        if self.parser.should_upgrade() and self.parser.get_method() == b"CONNECT":
            return 400, "this is no proxy"
        if b"#" in self.url:
            return 400, "a fragment (#) is not part of a request"
        if self._only_health and self.url.partition(b"?")[0] not in _HEALTH:
            return 503, "too many connections are open; try again in a moment"
        return None

    def _go_on_without_upgrade(self, rest: memoryview) -> None:
        """Read the request again as one that asks for no upgrade, and then the rest, which begins with its body.

        The parser takes whatever follows an upgrade for another protocol. Ignoring the upgrade means a body like any.
        """
        while not self._refused:
            self._upgrading = False
            lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.version.encode())
            self._set_parser()
            try:
                self.parser.feed_data(b"".join((first, *lines, b"\r\n")))
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:  # of a later request
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(400, "this is no HTTP request that can be understood")
            else:
                return

    def _bound_framing(self) -> None:
        """The body has not ended: what only surrounds it (sizes of chunks, trailers) is bounded as a head is."""
        self._without_body = 0 if self._body_came else self._without_body + self._came
        self._body_came = False
        if self._without_body > LARGEST_HEAD * 2:  # the first part may have a head in it
            self._refuse(431, f"trailers may have {LARGEST_HEAD} bytes")

    def _has_large_head(self) -> bool:
        if self._came_first + self._head_size <= LARGEST_HEAD:  # with all that came beside it, as nearly always
            return False
        return sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD

    # --------------------------------------------------------------------------------------- deadlines

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._open.bounds.receive, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.answering:
            self._await_head()  # an earlier request is still being answered
        else:
            self._refuse(408, f"the head of the request did not come within {self._open.bounds.receive:g} s")

    def _write_resumed(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def abort_after_deadline(self, transport: asyncio.Transport) -> None:
        """A client that does not read the rest of its answer in time does not get it."""
        self.loop.call_later(self._open.bounds.receive, transport.abort)

    # ----------------------------------------------------------------------------------------- refusal

    def _refuse(self, status: int, detail: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._head_came()
        if self.answering:
            if self._in_head and self._was_framed:  # what was asked before is certain: it is answered, and then the end
                self.set_keep_alive(False)
                return
            self.cycle.disconnected = True  # its body is not certain: the handler that reads it sees a disconnect
            self.cycle.message_event.set()
        if not self.answering or not (self.pipeline or getattr(self.cycle, "response_started", True)):
            self._write_refusal(status, detail)
        self.transport.close()

    def _write_refusal(self, status: int, detail: str) -> None:
        request_id = str(new_id())
        body = problem_bytes(status, detail, request_id)
        again = "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n{again}"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)


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
        transport, protocol = self._transport, self._protocol
        if transport.get_write_buffer_size():  # closing waits until it is written, however long that takes
            protocol.abort_after_deadline(transport)
        if not protocol.mid_message or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        transport.resume_reading()
        protocol.loop.call_later(_LINGERS, transport.close)
