"""Errors as problem details (RFC 9457): every one, each with the id by which the logs know of its request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

import todoku

_ACCEPTABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def request_id(request: Request) -> str:
    """The id of a request: the caller's, if it has one that can be a header, or a new one."""
    if not hasattr(request.state, "request_id"):
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given if _ACCEPTABLE.fullmatch(given) else str(uuid4())
    return str(request.state.request_id)


def problem(status: int, detail: str, request_id: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong, and by which id the logs know of it."""
    body = {"type": "about:blank", "title": detail.partition(";")[0], "status": status, "detail": detail}
    return JSONResponse(
        {**body, "request_id": request_id},
        status,
        {**(headers or {}), "X-Request-Id": request_id},
        "application/problem+json",
    )


def add_problems(api: FastAPI) -> None:
    """Answer whatever goes wrong with a problem: also what the framework refuses, and unexpected errors."""
    api.exception_handler(HTTPException)(_refused)
    api.exception_handler(RequestValidationError)(_invalid)
    for kind in (DBAPIError, todoku.DatabaseUnavailable):
        api.exception_handler(kind)(_away)
    api.exception_handler(todoku.TodokuError)(_ours)
    api.exception_handler(Exception)(_unexpected)


def _refused(request: Request, error: HTTPException) -> JSONResponse:
    return problem(error.status_code, str(error.detail), request_id(request), error.headers)


def _invalid(request: Request, _error: RequestValidationError) -> JSONResponse:
    return problem(422, "the request is not as it must be", request_id(request))


def _away(request: Request, error: Exception) -> JSONResponse:
    return problem(503, f"the database cannot do this now ({type(error).__name__})", request_id(request))


def _ours(request: Request, error: todoku.TodokuError) -> JSONResponse:
    return problem(422 if isinstance(error, todoku.InvalidMessage) else 503, str(error), request_id(request))


def _unexpected(request: Request, _error: Exception) -> JSONResponse:
    return problem(500, HTTPStatus(500).phrase, request_id(request))
