"""All uses of aiohttp's private interface. Other modules of `todoku.destinations` import these names from here.

Tested with the lowest version that `pyproject.toml` allows (`make test-floors`) and with the one in
`requirements/runtime.txt`. Besides the imported names, it uses `TCPConnector._factory`, which creates the protocol of a
connection, and the methods that `BoundedHandler` overrides.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage, StreamWriter
from aiohttp.tracing import Trace

__all__ = [
    "BoundedHandler",
    "Connection",
    "HttpProcessingError",
    "RawResponseMessage",
    "StreamWriter",
    "Trace",
    "bound_answers",
]

MAX_HEADERS: Final = 100
MAX_FIELD: Final = 8190
"""The most headers of a response, and the most bytes of one header; a response with more is invalid."""

MAX_HEAD_BYTES: Final = 64 << 10
"""The most bytes of the head of a response and of the interim responses (1xx) before it."""

MAX_INTERIM: Final = 10
"""The most interim responses (1xx)."""

MAX_BODY_BYTES: Final = 1 << 20
"""The most bytes after the head: far more than a sender reads, even of a body in tiny chunks."""

_PIECE: Final = 8 << 10
"""Bytes of a head that are parsed before the limits are checked again."""


class BoundedHandler(ResponseHandler):
    """A connection to a receiver that reads only responses to its own requests, and only within the limits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._expecting = False
        self._has_head = False
        self._interim = self._received = 0

    def expect_answer(self) -> None:
        """Starts reading a response; called before a request is written."""
        self._expecting, self._has_head, self._interim, self._received = True, False, 0, 0
        self.set_response_params(
            read_until_eof=True, auto_decompress=False, max_line_size=MAX_FIELD, max_field_size=MAX_FIELD,
            max_headers=MAX_HEADERS,
        )  # fmt: skip

    def end_answer(self) -> None:
        """Stops reading; called when the response has been read as far as the sender needs it."""
        self._expecting = False

    def data_received(self, data: bytes) -> None:
        """Parses received bytes. Bytes without a request, or beyond a limit, end the connection."""
        if not data:  # by this aiohttp resumes the parser
            super().data_received(data)
        elif not self._expecting:
            self.force_close()
            self._abort()
        else:
            while data and not self._has_head and self.exception() is None:
                piece, data = data[:_PIECE], data[_PIECE:]
                self._received += len(piece)
                super().data_received(piece)
                self._check_head()
            if data and self.exception() is None:
                self._received += len(data)
                super().data_received(data)
            if self._has_head:
                self._check_body()

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        """Takes the head of a response from the parser. Interim responses (1xx) are only counted."""
        code = data[0].code
        if 100 <= code <= 199 and code != 101:
            self._interim += 1
        elif self._interim <= MAX_INTERIM:
            self._has_head = True
            super().feed_data(data, size)

    def _check_head(self) -> None:
        if self._interim > MAX_INTERIM:
            self._fail(f"it sent more than {MAX_INTERIM} interim responses (1xx)")
        elif not self._has_head and self._received > MAX_HEAD_BYTES:
            self._fail(f"its head has more than {MAX_HEAD_BYTES} bytes")

    def _check_body(self) -> None:
        """Fails the reading of an invalid body at once, instead of at the deadline."""
        payload = self._payload
        if payload is None or payload.is_eof() or payload.exception() is not None:
            return
        if self._received > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            payload.set_exception(aiohttp.ClientPayloadError("its body takes up too many bytes"))
            self._abort()
        elif (error := self.exception()) is not None:
            payload.set_exception(aiohttp.ClientPayloadError(f"its body cannot be read: {error}"))

    def _fail(self, why: str) -> None:
        if self.exception() is None:
            self.set_exception(HttpProcessingError(code=502, message=why))
            self._abort()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def bound_answers(connector: aiohttp.TCPConnector, loop: asyncio.AbstractEventLoop) -> aiohttp.TCPConnector:
    """Makes the connector create BoundedHandlers."""
    connector._factory = partial(BoundedHandler, loop=loop)  # type: ignore[assignment]  # a partial is invariant
    return connector
