"""Errors as problem details (RFC 9457)."""

from __future__ import annotations

from fastapi.responses import JSONResponse


def problem(status: int, detail: str, request_id: str) -> JSONResponse:
    """An answer that says what is wrong, and by which id the logs know of it."""
    body = {"type": "about:blank", "title": detail.partition(";")[0], "status": status, "detail": detail}
    return JSONResponse(
        {**body, "request_id": request_id}, status, {"X-Request-Id": request_id}, "application/problem+json"
    )
