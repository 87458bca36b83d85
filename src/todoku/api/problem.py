"""Errors as problem details (RFC 9457). They also carry `error`, which is all that QStash's clients look at.

What an error of ours says is told; of anything else, and of databases, only that it happened: their words name hosts,
files and statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from todoku.core.control_characters import encode_json
from todoku.core.errors import (
    CannotOpen,
    DatabaseBusy,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InProgress,
    InvalidAct,
    InvalidMessage,
    InvalidSetting,
    NoSuchMessage,
    NotThere,
    ResultNotKept,
    SchemaError,
    TodokuError,
)

MEDIA_TYPE: Final = "application/problem+json"
NOT_STORED: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of every answer that is about somebody's data."""

_AGAIN_AFTER: Final = {"retry-after": "1"}
_UNAVAILABLE: Final = "the database does not answer now; whether the request took effect is not known"
_BUSY: Final = "the database is busy; nothing was changed"
_UNMIGRATED: Final = "the database is not migrated yet; nothing was changed"
_UNEXPECTED: Final = "this should not have happened; the log of the server says more under this request id"


class Refused(TodokuError):
    """A request is refused with this HTTP status; `headers` go with the answer."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = dict(headers or {})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer that is an error. `detail` and `error` are the same sentence."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    request_id: str


class Told(msgspec.Struct, frozen=True):
    """What is said of an error. `unexpected`: it belongs in the log."""

    status: int
    detail: str
    headers: Mapping[str, str] = {}
    unexpected: bool = False


def told(error: Exception) -> Told:
    """Which status an error has, and what may be said of it."""
    match error:
        case Refused():
            return Told(error.status, str(error), error.headers)
        case HTTPException():
            return Told(error.status_code, error.detail, error.headers or {})
        case NoSuchMessage() | NotThere() | ResultNotKept():
            return Told(404, str(error))
        case InProgress():
            return Told(409, str(error), _AGAIN_AFTER)
        case IdempotencyConflict() | IllegalTransition() | CannotOpen():
            return Told(409, str(error))
        case InvalidMessage() | InvalidAct() | InvalidSetting():
            return Told(422, str(error))
        case DatabaseUnavailable():
            return Told(503, _UNAVAILABLE, _AGAIN_AFTER)
        case DatabaseBusy():
            return Told(503, _BUSY, _AGAIN_AFTER)
        case SchemaError():
            return Told(503, _UNMIGRATED, _AGAIN_AFTER)
        case _:
            return Told(500, _UNEXPECTED, unexpected=True)


def answer(said: Told, request_id: str) -> Response:
    """The answer to a request that came to this."""
    return Response(
        problem_bytes(said.status, said.detail, request_id), said.status, {**NOT_STORED, **said.headers}, MEDIA_TYPE
    )


def problem_bytes(status: int, detail: str, request_id: str) -> bytes:
    """A problem as JSON."""
    title = HTTPStatus(status).phrase if status in _KNOWN else "Problem"
    return encode_json(Problem(title=title, status=status, detail=detail, error=detail, request_id=request_id))


_KNOWN: Final = frozenset(status.value for status in HTTPStatus)
