"""Reads request bodies: raw bytes up to a limit, within a deadline; compressed ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from todoku.api.problem import Refused

T = TypeVar("T")

BODY_TIMEOUT: Final = 10.0
"""Default seconds from the start of reading a body to its last byte."""

BODY_TIMEOUT_STATE: Final = "todoku_read_within"
"""The key of these seconds in a request's state."""

LARGEST_JSON: Final = 1 << 20

_CLOSE: Final = {"connection": "close"}
"""Closes the connection: the unread rest of a body must not be parsed as the next request."""


async def read_body(request: Request, *, limit: int) -> bytes:
    """Returns the raw body. Raises Refused: 413 too large (if declared, before reading), 408 late, 415 compressed."""
    seconds = request.scope.get("state", {}).get(BODY_TIMEOUT_STATE, BODY_TIMEOUT)
    return await read_bytes(request.headers, request.receive, limit=limit, seconds=seconds)


async def read_bytes(headers: Mapping[str, str], receive: Receive, *, limit: int, seconds: float) -> bytes:
    """Like `read_body`, without a `Request`. The names of `headers` are lower case."""
    _refuse_compressed(headers)
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    deadline = _Deadline(seconds)
    try:
        return await _read(receive, limit)
    except asyncio.CancelledError:
        if not deadline.has_passed():
            raise
        raise Refused(408, f"the body did not arrive within {seconds:g} s", headers=_CLOSE) from None
    finally:
        deadline.end()


async def read_json(request: Request, type: type[T], *, limit: int = LARGEST_JSON) -> T:
    """Returns a JSON body of this type. Raises Refused as `read_body` and `decode_json`, and 415 for another type."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await read_body(request, limit=limit)
    if kind != "application/json":
        raise Refused(415, f"the body is {kind or 'of no type'}", hint="send Content-Type: application/json")
    return decode_json(body, type)


def refuse_body(request: Request) -> None:
    """Raises Refused (422) if a request declares a body."""
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        raise Refused(422, "this operation takes no body", hint="send the request without one", headers=_CLOSE)


def decode_json(body: bytes, type: type[T]) -> T:
    """Decodes JSON to this type. Raises Refused: 400 not JSON, 422 not of this type."""
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the body is not acceptable: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


class _Deadline:
    """Cancels the current task after `seconds` unless ended before, at a third of the cost of `asyncio.timeout`."""

    __slots__ = ("_is_late", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._is_late = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._cancel)

    def _cancel(self) -> None:
        self._is_late = True
        if self._task is not None:
            self._task.cancel()

    def has_passed(self) -> bool:
        """Returns whether this deadline alone cancelled the task."""
        return self._is_late and self._task is not None and self._task.uncancel() == 0

    def end(self) -> None:
        """Stops the timer."""
        self._timer.cancel()


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the connection ended before the body did", headers=_CLOSE)
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _refuse_compressed(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise Refused(
            415,
            f"a body encoded as {encoding[:40]!r} is not accepted",
            hint="send it without Content-Encoding",
            headers=_CLOSE | {"accept-encoding": "identity"},
        )


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than {limit} bytes", headers=_CLOSE)
