"""Attempts and headers as the API returns them: secrets are masked."""

from __future__ import annotations

import base64
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.http_request import is_secret
from todoku.core.outcome import Response
from todoku.core.redaction import STARS, mask
from todoku.core.sealed import shown_traceback
from todoku.store import attempts


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver's response, cut at 16 KiB. A body that is not UTF-8 text is in `body_base64`."""

    status: int
    headers: dict[str, str]
    body: str | None
    body_base64: str | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One failed attempt. `response` is null if there was no HTTP response."""

    delivery_id: int
    replay: int
    number: int
    epoch: int
    started_at: datetime | None
    ended_at: datetime
    reason: str
    error: str | None
    worker: UUID | None
    response: Answered | None
    traceback: str | None
    """Where the attempt failed, if it raised an exception; without local variables."""
    fingerprint: str | None
    """The same for failures of the same type in the same functions."""
    run_ms: int | None = None
    """How long the handler or the send took; `started_at` is when its worker claimed it."""


def masked_attempt(row: attempts.Attempt, fields: frozenset[str]) -> Attempt:
    """Returns an attempt with masked response headers."""
    return Attempt(
        delivery_id=row.delivery_id,
        replay=row.replay,
        number=row.number,
        epoch=row.epoch,
        started_at=row.started_at,
        ended_at=row.ended_at,
        reason=row.reason,
        error=row.error,
        worker=row.worker,
        response=None if row.response is None else _masked_response(row.response, fields),
        traceback=shown_traceback(row.traceback),
        fingerprint=row.fingerprint,
        run_ms=row.run_ms,
    )


def masked_headers(headers: dict[str, str], fields: frozenset[str]) -> dict[str, str]:
    """Returns the headers with the values of sensitive ones replaced by `***`."""
    hidden = {name: STARS if is_secret(name) else value for name, value in headers.items()}
    return msgspec.convert(mask(hidden, fields), dict[str, str])


def _masked_response(response: Response, fields: frozenset[str]) -> Answered:
    text: str | None
    try:
        text, encoded = response.body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(response.body).decode()
    headers = masked_headers(response.headers, fields)
    return Answered(status=response.status, headers=headers, body=text, body_base64=encoded)
