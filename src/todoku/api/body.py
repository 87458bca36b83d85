"""The body of a request: raw bytes, so many at most, within a deadline, and never unpacked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from todoku.api.problem import Refused

T = TypeVar("T")

READ_WITHIN: Final = 10.0
"""Seconds from the first look at a body to its last byte, where no setting says otherwise."""

WITHIN_STATE: Final = "todoku_read_within"
"""Where a request's state holds these seconds."""

LARGEST_JSON: Final = 1 << 20

_CLOSE: Final = {"connection": "close"}
"""What was not read must not be taken for the next request."""


async def read_body(request: Request, *, limit: int) -> bytes:
    """The bytes as they came. Refused: 413 too large, before reading if it says so itself; 408 too slow; 415 packed."""
    seconds = request.scope.get("state", {}).get(WITHIN_STATE, READ_WITHIN)
    return await read_bytes(request.headers, request.receive, limit=limit, seconds=seconds)


async def read_bytes(headers: Mapping[str, str], receive: Receive, *, limit: int, seconds: float) -> bytes:
    """As `read_body`, of a request that nobody has made an object of. `headers` are known by names in lower case."""
    _refuse_packed(headers)
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    deadline = _Deadline(seconds)
    try:
        return await _read(receive, limit)
    except asyncio.CancelledError:
        if not deadline.passed():
            raise
        raise Refused(408, f"the body did not come within {seconds:g} s", headers=_CLOSE) from None
    finally:
        deadline.end()


async def read_json(request: Request, type: type[T], *, limit: int = LARGEST_JSON) -> T:
    """A JSON body of this type. Refused: as `read_body`; 415 not JSON; 400 not readable; 422 not what it must be."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await read_body(request, limit=limit)
    if kind != "application/json":
        raise Refused(415, f"the body is {kind or 'of no type'}", hint="send Content-Type: application/json")
    return decoded(body, type)


def refuse_body(request: Request) -> None:
    """Refused: 422, if a request announces a body where none is read."""
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        raise Refused(422, "there is nothing to be said in a body here", hint="leave it out", headers=_CLOSE)


def decoded(body: bytes, type: type[T]) -> T:
    """JSON as this type. Refused: 400 it is no JSON; 422 it is, but says something else."""
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the body is not acceptable: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from None


class _Deadline:
    """Cancels this task after so many seconds, unless it has ended: `asyncio.timeout` at a third of the price."""

    __slots__ = ("_late", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._late = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    def _pass(self) -> None:
        self._late = True
        if self._task is not None:
            self._task.cancel()

    def passed(self) -> bool:
        """Whether it was this deadline that cancelled the task, and nobody else beside it."""
        return self._late and self._task is not None and self._task.uncancel() == 0

    def end(self) -> None:
        """It was in time."""
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


def _refuse_packed(headers: Mapping[str, str]) -> None:
    packed = headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity"):
        raise Refused(
            415,
            f"a body in {packed[:40]!r} is not accepted",
            hint="send it as it is, without Content-Encoding",
            headers=_CLOSE | {"accept-encoding": "identity"},
        )


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than {limit} bytes", headers=_CLOSE)
