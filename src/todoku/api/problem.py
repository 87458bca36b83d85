"""Errors as problem details (RFC 9457). They also carry `error`, the only field that QStash's clients read.

Responses contain the messages of todoku's own errors, but not those of other errors or of databases, which may name
hosts, files and statements.
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
    RunEnded,
    SchemaError,
    TodokuError,
)

MEDIA_TYPE: Final = "application/problem+json"
NO_STORE: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of every response that contains user data."""

_RETRY_AFTER: Final = {"retry-after": "1"}
_UNAVAILABLE: Final = "the database is not available; whether the request took effect is not known"
_BUSY: Final = "the database is busy; nothing was changed"
_UNMIGRATED: Final = "the database is not migrated yet; nothing was changed"
_UNEXPECTED: Final = "unexpected error; the server's log has the details under this request id"


class Refused(TodokuError):
    """A request is refused with this HTTP status; `headers` are added to the response."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = dict(headers or {})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response. `detail` and `error` are the same text."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    request_id: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """The status, text and headers for an error. `unexpected`: it is to be logged."""

    status: int
    detail: str
    headers: Mapping[str, str] = {}
    unexpected: bool = False


def error_response(error: Exception) -> ErrorResponse:
    """Returns the status of an error and the text that the client may see."""
    match error:
        case Refused():
            return ErrorResponse(error.status, str(error), error.headers)
        case HTTPException():
            return ErrorResponse(error.status_code, error.detail, error.headers or {})
        case NoSuchMessage() | NotThere() | ResultNotKept():
            return ErrorResponse(404, str(error))
        case InProgress():
            return ErrorResponse(409, str(error), _RETRY_AFTER)
        case IdempotencyConflict() | IllegalTransition() | CannotOpen():
            return ErrorResponse(409, str(error))
        case InvalidMessage() | InvalidAct() | InvalidSetting():
            # The SDKs of workflows know by status 400 that their run has ended.
            return ErrorResponse(400 if isinstance(error, RunEnded) else 422, str(error))
        case DatabaseUnavailable():
            return ErrorResponse(503, _UNAVAILABLE, _RETRY_AFTER)
        case DatabaseBusy():
            return ErrorResponse(503, _BUSY, _RETRY_AFTER)
        case SchemaError():
            return ErrorResponse(503, _UNMIGRATED, _RETRY_AFTER)
        case _:
            return ErrorResponse(500, _UNEXPECTED, unexpected=True)


def problem_response(error: ErrorResponse, request_id: str) -> Response:
    """Returns the HTTP response for an error."""
    return Response(
        problem_bytes(error.status, error.detail, request_id), error.status, {**NO_STORE, **error.headers}, MEDIA_TYPE
    )


def problem_bytes(status: int, detail: str, request_id: str) -> bytes:
    """Returns a problem as JSON."""
    title = HTTPStatus(status).phrase if status in _KNOWN else "Problem"
    return encode_json(Problem(title=title, status=status, detail=detail, error=detail, request_id=request_id))


_KNOWN: Final = frozenset(status.value for status in HTTPStatus)
