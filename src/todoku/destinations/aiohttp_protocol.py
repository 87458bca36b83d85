"""The private names of aiohttp: `todoku.destinations` takes them from here alone.

`TESTED` was run at both ends: the lowest version that `pyproject.toml` allows (`make test-floors`) and the one in
`requirements/runtime.txt`. With another version, or one without these names, requests are sent over the public
interface (`http_exchange.SessionExchange`). Beside the names below: `TCPConnector._factory`, which makes the protocol
of a connection, and the methods that `BoundedHandler` overrides.
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

from todoku.core.version_range import VersionRange

__all__ = [
    "BoundedHandler",
    "Connection",
    "HttpProcessingError",
    "RawResponseMessage",
    "StreamWriter",
    "Trace",
    "bound_answers",
    "is_tested",
]

TESTED: Final = VersionRange((3, 13, 4), (3, 15))

_OVERRIDDEN: Final = ("data_received", "feed_data", "force_close", "set_exception", "set_response_params")

MAX_HEADERS: Final = 100
MAX_FIELD: Final = 8190
"""Of an answer: more headers, or a longer one, and it is none."""

MAX_HEAD_BYTES: Final = 64 << 10
"""All heads of an answer together: its own, and those that only announce it (1xx)."""

MAX_ANNOUNCED: Final = 10
"""So many 1xx may come before an answer."""

MAX_BODY_BYTES: Final = 1 << 20
"""What may come behind the head of an answer: far more than is read of a body, in chunks however small."""

_PIECE: Final = 8 << 10
"""So much of a head is parsed before the bounds are looked at again."""


class BoundedHandler(ResponseHandler):
    """A connection to a receiver: only what was asked for is read, and no more than an answer may have."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._asked = False
        self._head_came = False
        self._announced = self._came = 0

    def expect_answer(self) -> None:
        """A request is about to be written: what comes from now on is its answer."""
        self._asked, self._head_came, self._announced, self._came = True, False, 0, 0
        self.set_response_params(
            read_until_eof=True, auto_decompress=False, max_line_size=MAX_FIELD, max_field_size=MAX_FIELD,
            max_headers=MAX_HEADERS,
        )  # fmt: skip

    def end_answer(self) -> None:
        """The answer was read as far as anybody wants it."""
        self._asked = False

    def data_received(self, data: bytes) -> None:
        """Some bytes. Those without a request, or beyond a bound, end the connection."""
        if not data:  # aiohttp's own sign that the parser may go on
            super().data_received(data)
        elif not self._asked:
            self.force_close()
            self._cut_off()
        else:
            while data and not self._head_came and self.exception() is None:
                piece, data = data[:_PIECE], data[_PIECE:]
                self._came += len(piece)
                super().data_received(piece)
                self._check_head()
            if data and self.exception() is None:
                self._came += len(data)
                super().data_received(data)
            if self._head_came:
                self._check_body()

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        """The head of an answer; or an interim one (1xx), which the worker passes over."""
        code = data[0].code
        if 100 <= code <= 199 and code != 101:
            self._announced += 1
        elif self._announced <= MAX_ANNOUNCED:
            self._head_came = True
            super().feed_data(data, size)

    def _check_head(self) -> None:
        if self._announced > MAX_ANNOUNCED:
            self._fail(f"it announced its answer more than {MAX_ANNOUNCED} times (1xx)")
        elif not self._head_came and self._came > MAX_HEAD_BYTES:
            self._fail(f"its head has more than {MAX_HEAD_BYTES} bytes")

    def _check_body(self) -> None:
        """Fails the read of a body that cannot be read at once, instead of at the deadline."""
        payload = self._payload
        if payload is None or payload.is_eof() or payload.exception() is not None:
            return
        if self._came > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            payload.set_exception(aiohttp.ClientPayloadError("its body is wrapped in too many bytes"))
            self._cut_off()
        elif (error := self.exception()) is not None:
            payload.set_exception(aiohttp.ClientPayloadError(f"its body cannot be read: {error}"))

    def _fail(self, why: str) -> None:
        if self.exception() is None:
            self.set_exception(HttpProcessingError(code=502, message=why))
            self._cut_off()

    def _cut_off(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def is_tested() -> bool:
    """Whether the private names of the aiohttp that is installed can be relied on."""
    return TESTED.includes(aiohttp.__version__) and all(hasattr(ResponseHandler, name) for name in _OVERRIDDEN)


def bound_answers(connector: aiohttp.TCPConnector, loop: asyncio.AbstractEventLoop) -> aiohttp.TCPConnector:
    """Lets the connections of this connector be bounded ones. AttributeError: this aiohttp has no `_factory`."""
    connector._factory  # noqa: B018 - to set another name than it reads would bound nothing
    connector._factory = partial(BoundedHandler, loop=loop)  # type: ignore[assignment]  # a partial is invariant
    return connector
