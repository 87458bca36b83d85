"""HTTP/1.1 on a connection, with limits that uvicorn does not set: the size of a head, the slowness of a client, and
unambiguous framing of bodies.

A request refused here never reaches ASGI, so its response has a new request id. A request whose framing is ambiguous is
refused and its connection closed, so that nothing is stored on a guess.
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

_LINGER: Final = 2.0
"""Seconds of discarding input before closing: closing at once may destroy the response before it is read."""

_HEALTH: Final = (b"/healthz", b"/readyz")
"""Paths that are served even beyond the limit of connections."""

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"expect"})
"""Headers that determine how the body is sent."""


class BoundedProtocol(UvicornProtocol):
    """uvicorn's protocol with limits."""

    def __init__(self, *arguments: Any, connections: Connections | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open = connections or Connections(Bounds())
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._received = self._first_received = 0
        self._without_body = 0
        self._has_body_part = False
        self._in_head = True
        self._mid_message = False
        self._framed = self._was_framed = False
        self._keeps_alive = True
        self._upgrading = False
        self._wrong: tuple[int, str] | None = None
        self._refused = False
        self._only_health = False
        self.version = "1.1"
        """The HTTP version of the newest request."""
        self.first_bytes = b""
        """What another process has read from this connection before it handed it on."""
        self._set_parser()

    # ---------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts a connection and the deadline of its first head."""
        super().connection_made(_Lingering(transport, self))  # type: ignore[arg-type]
        self._only_health = not self._open.admit(self, self.client[0] if self.client else "")
        self._start_head_timer()
        if self.first_bytes:
            self.data_received(self.first_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers and removes the connection."""
        self._open.forget(self)
        self._cancel_head_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses bytes. Invalid HTTP is answered with 400 and not logged, since anyone can send it."""
        if self._refused:
            return
        self.cancel_idle_deadline()
        self._received = len(data)
        if self._in_head:
            self._head_size += self._received
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "this is not a valid HTTP request")
        if not self._in_head:
            self._bound_framing()
        elif self._head_size > LARGEST_HEAD:
            self._refuse(431, f"the head of a request may have at most {LARGEST_HEAD} bytes")
        elif self._head_timer is None and not (self.answering or self._refused):
            self._start_head_timer()  # only now: nearly every head arrives whole and needs no timer

    def pause_writing(self) -> None:
        """Starts the deadline for a client that does not read its response."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._open.bounds.receive, self.drop)

    def resume_writing(self) -> None:
        """Stops the deadline: the client reads again."""
        self._cancel_write_timer()
        super().resume_writing()

    def drop(self) -> None:
        """Ends the connection now and discards unwritten data."""
        self.transport.abort()

    # -------------------------------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        """Handles the first byte of a request."""
        self._in_head, self._mid_message, self._head_size, self._first_received = True, True, 0, self._received
        self._framed = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header. Trailers of a chunked body are ignored: no handler reads them."""
        if self._in_head:
            name = name.lower()
            if name in _FRAMING:
                self._check_framing(name, value)
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Checks a complete head: refuses it, restarts without its upgrade, or starts the request."""
        self._cancel_head_timer()
        if self._refused:  # because of an earlier request in the same segment
            return
        if (wrong := self._wrong or self._wrong_head()) is not None:
            self._refuse(*wrong)
        elif self.parser.should_upgrade():
            self._upgrading = True  # the parser stops after this head, which is parsed again without the upgrade
        else:
            self._in_head = False
            self._without_body, self._has_body_part = 0, False
            self.head_complete()

    def head_complete(self) -> None:
        """Serves a request whose head is complete and within the limits, through ASGI."""
        super().on_headers_complete()
        # Until the body is complete, a response ends the connection: see on_message_complete.
        self._keeps_alive = self.cycle.keep_alive and not self._only_health
        self.set_keep_alive(False)

    def on_body(self, body: bytes) -> None:
        """Handles a part of a body."""
        self._has_body_part = True
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Handles the last byte of a request."""
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
        """Whether a refusal has ended the connection."""
        return self._refused

    @property
    def framed(self) -> bool:
        """Whether the request declares how its body ends."""
        return self._framed

    @property
    def answering(self) -> bool:
        """Whether a request has not been answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def mid_message(self) -> bool:
        """Whether the client may still be sending a request."""
        return self._mid_message

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn to send or to read."""
        return not self.answering or self._mid_message or self.flow.write_paused

    # ------------------------------------------------------------------------------------- one request

    def _set_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        # Data after a request that ends the connection is an error: it may be the body of one without a length.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)

    def _check_framing(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._framed = True
        elif name == b"expect":
            if value.lower() == b"100-continue":
                self.expect_100_continue = True
            else:
                self._wrong = (417, "Expect must be 100-continue")
        elif self._framed or value.lower() != b"chunked":  # twice, together with a length, or compressed
            self._wrong = (400, "Transfer-Encoding must be chunked, once and without a Content-Length")
        else:
            self._framed = True

    def _wrong_head(self) -> tuple[int, str] | None:
        """Returns the status and detail of a refusal; None if the head is acceptable."""
        if len(self.url) > LARGEST_URL:
            return 414, f"a URL may have at most {LARGEST_URL} bytes"
        if len(self.headers) > MOST_HEADERS or self._has_large_head():
            return 431, f"a request may have at most {MOST_HEADERS} headers and {LARGEST_HEAD} bytes of them"
        self.version = self.parser.get_http_version()
        if self.version != "1.1":
            if self.version != "1.0":
                return 505, "this version of HTTP is not supported: use HTTP/1.0 or HTTP/1.1"
            if any(name == b"transfer-encoding" for name, _ in self.headers):
                return 400, "HTTP/1.0 has no Transfer-Encoding"
        if self.parser.should_upgrade() and self.parser.get_method() == b"CONNECT":
            return 400, "this server is not a proxy"
        if b"#" in self.url:
            return 400, "the URL of a request may not have a fragment (#)"
        if self._only_health and self.url.partition(b"?")[0] not in _HEALTH:
            return 503, "too many connections are open; try again in a moment"
        return None

    def _go_on_without_upgrade(self, rest: memoryview) -> None:
        """Parses the request again without its upgrade, then `rest`, which begins with its body.

        The parser treats everything after an upgrade as another protocol. An ignored upgrade has an ordinary body.
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
                self._refuse(400, "this is not a valid HTTP request")
            else:
                return

    def _bound_framing(self) -> None:
        """Limits the bytes around an unfinished body (chunk sizes, trailers) like those of a head."""
        self._without_body = 0 if self._has_body_part else self._without_body + self._received
        self._has_body_part = False
        if self._without_body > LARGEST_HEAD * 2:  # the first part may include the head
            self._refuse(431, f"trailers may have at most {LARGEST_HEAD} bytes")

    def _has_large_head(self) -> bool:
        if self._first_received + self._head_size <= LARGEST_HEAD:  # cheap upper bound, true for nearly all heads
            return False
        return sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD

    # --------------------------------------------------------------------------------------- deadlines

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._open.bounds.receive, self._refuse_late_head)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_late_head(self) -> None:
        self._head_timer = None
        if self.answering:
            self._start_head_timer()  # an earlier request is still being answered
        else:
            self._refuse(408, f"the head of the request did not arrive within {self._open.bounds.receive:g} s")

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def abort_after_deadline(self, transport: asyncio.Transport) -> None:
        """Aborts the connection if the client does not read the rest of its response in time."""
        self.loop.call_later(self._open.bounds.receive, transport.abort)

    # ----------------------------------------------------------------------------------------- refusal

    def _refuse(self, status: int, detail: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._cancel_head_timer()
        if self.answering:
            if self._in_head and self._was_framed:  # the previous request is complete: answer it, then close
                self.set_keep_alive(False)
                return
            self.cycle.disconnected = True  # its body is ambiguous: the handler that reads it sees a disconnect
            self.cycle.message_event.set()
        if not self.answering or not (self.pipeline or getattr(self.cycle, "response_started", True)):
            self._write_refusal(status, detail)
        self.transport.close()

    def _write_refusal(self, status: int, detail: str) -> None:
        request_id = str(new_id())
        body = problem_bytes(status, detail, request_id)
        retry_after = "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n{retry_after}"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)


class _Lingering:
    """A transport that closes in two steps (EOF, then close) while the client may still be sending."""

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Returns whether `close` was called, even if the connection still lingers."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Closes now, or once the client has had time to read the response."""
        if self._closing or self._transport.is_closing():
            return
        self._closing = True
        transport, protocol = self._transport, self._protocol
        if transport.get_write_buffer_size():  # closing waits without limit until it is written
            protocol.abort_after_deadline(transport)
        if not protocol.mid_message or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        transport.resume_reading()
        protocol.loop.call_later(_LINGER, transport.close)
