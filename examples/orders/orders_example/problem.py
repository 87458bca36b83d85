"""Errors as RFC 9457 wants them, with the seed's code beside."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response


def problem(status: int, error: str, detail: str, *, retry_after: int | None = None, **more: object) -> Response:
    """A problem document. `error` is for programs, `detail` for people."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = msgspec.json.encode(document | {"error": str(error)} | more)
    return Response(body, status, headers, media_type="application/problem+json")
