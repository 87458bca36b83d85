"""Responses of a webhook receiver: received, retry later, never retry. Errors are problem details."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from todoku.core.failure import NON_RETRYABLE_STATUS
from todoku.core.outcome import Duration, reason_code, seconds


def ack() -> Response:
    """The message was received: 204. Return it after your commit, and also for a message you have seen before."""
    return Response(status_code=204)


def retry(after: Duration | None = None, *, request_id: str | None = None) -> Response:
    """Send it again later: 503, with `after` as Retry-After. `request_id`: by which your logs know the request."""
    headers = {} if after is None else {"Retry-After": str(math.ceil(seconds(after, what="after")))}
    return _problem(503, {"title": "not now"}, headers, request_id)


def dead(reason: str, *, request_id: str | None = None) -> Response:
    """Never send it again: 489. The sender makes it a dead letter with this reason. `request_id`: as for `retry`."""
    fields = {"title": "never send this again", "reason": reason_code(reason)}
    return _problem(NON_RETRYABLE_STATUS, fields, {"Upstash-NonRetryable-Error": "true"}, request_id)


def _problem(status: int, fields: Mapping[str, str], headers: Mapping[str, str], request_id: str | None) -> Response:
    named = ({}, {}) if request_id is None else ({"request_id": request_id}, {"X-Request-Id": request_id})
    body = {"type": "about:blank", "status": status, **fields, **named[0]}
    return JSONResponse(body, status, {**headers, **named[1]}, "application/problem+json")
