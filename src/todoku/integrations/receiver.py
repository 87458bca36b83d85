"""The receiving side of a webhook, in its sender's words: taken, not now, never. What failed is problem details."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from todoku.core.failure import NON_RETRYABLE_STATUS
from todoku.core.outcome import Duration, reason_code, seconds


def ack() -> Response:
    """It has arrived: 204. After your commit, and also for a message you have seen before."""
    return Response(status_code=204)


def retry(after: Duration | None = None) -> Response:
    """Not now, send it again: 503, and when, if you know."""
    headers = {} if after is None else {"Retry-After": str(math.ceil(seconds(after, what="after")))}
    return _problem(503, {"title": "not now"}, headers)


def dead(reason: str) -> Response:
    """Never send this again: it is a dead letter at the sender, under this reason (489)."""
    said = {"title": "never send this again", "reason": reason_code(reason)}
    return _problem(NON_RETRYABLE_STATUS, said, {"Upstash-NonRetryable-Error": "true"})


def _problem(status: int, said: Mapping[str, str], headers: Mapping[str, str]) -> Response:
    body = {"type": "about:blank", "status": status, **said}
    return JSONResponse(body, status, dict(headers), "application/problem+json")
