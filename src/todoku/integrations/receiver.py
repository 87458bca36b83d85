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


def retry(after: Duration | None = None) -> Response:
    """Send it again later: 503, with `after` as Retry-After."""
    headers = {} if after is None else {"Retry-After": str(math.ceil(seconds(after, what="after")))}
    return _problem(503, {"title": "not now"}, headers)


def dead(reason: str) -> Response:
    """Never send it again: 489. The sender makes it a dead letter with this reason."""
    fields = {"title": "never send this again", "reason": reason_code(reason)}
    return _problem(NON_RETRYABLE_STATUS, fields, {"Upstash-NonRetryable-Error": "true"})


def _problem(status: int, fields: Mapping[str, str], headers: Mapping[str, str]) -> Response:
    body = {"type": "about:blank", "status": status, **fields}
    return JSONResponse(body, status, dict(headers), "application/problem+json")
