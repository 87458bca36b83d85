"""The receiving side of a webhook, in the words of its sender: taken, not now, never."""

from __future__ import annotations

import math

from starlette.responses import JSONResponse, Response

from todoku.core.failure import NON_RETRYABLE_STATUS
from todoku.core.outcome import Duration, reason_code, seconds


def ack() -> Response:
    """It has arrived: 204. After your commit, and also for a message you have seen before."""
    return Response(status_code=204)


def retry(after: Duration | None = None) -> Response:
    """Not now, send it again: 503, and when, if you know."""
    headers = {} if after is None else {"Retry-After": str(math.ceil(seconds(after, what="after")))}
    return Response(status_code=503, headers=headers)


def dead(reason: str) -> Response:
    """Never send this again: it is a dead letter at the sender, under this reason (489)."""
    return JSONResponse(
        {"reason": reason_code(reason)},
        status_code=NON_RETRYABLE_STATUS,
        headers={"Upstash-NonRetryable-Error": "true"},
    )
