"""The API: `POST /users`, `GET /users/{id}`, `GET /stats`."""

from __future__ import annotations

import re
import sqlite3
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

import todoku
from users_example.application import Application
from users_example.payload import ADDRESS, ValidationMode
from users_example.users import EmailTaken


def _a_name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("is no name: some printable characters on one line")
    return text.strip()


def _an_address(text: str) -> str:
    if re.match(ADDRESS, text) is None or not text.isprintable():
        raise ValueError("is no mail address: somebody@somewhere")
    return text


class NewUser(BaseModel):
    """What is posted. Whether the additional properties make sense, the job finds out (`validation_mode`)."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=200), AfterValidator(_a_name)]
    email: Annotated[str, Field(max_length=320), AfterValidator(_an_address)]
    additional_props: dict[str, Any] = Field(default_factory=dict)
    validation_mode: ValidationMode = "lenient"


def make_api(application: Application) -> FastAPI:
    """The API on an application that is open. Endpoints are plain functions: FastAPI runs them in threads."""
    api = FastAPI(title="users", docs_url=None, redoc_url=None)
    api.exception_handler(RequestValidationError)(_refused)
    for kind in _unavailable():
        api.exception_handler(kind)(_away)

    @api.post("/users", status_code=201)
    def create_user(user: NewUser) -> dict[str, Any]:
        try:
            created = application.users.create(user.name, user.email, user.additional_props, user.validation_mode)
        except EmailTaken:
            raise HTTPException(409, [{"field": "email", "problem": "is taken"}]) from None
        except todoku.InvalidMessage as error:  # too large, too deep, no JSON: nothing was stored
            raise HTTPException(422, [{"field": "additional_props", "problem": str(error)}]) from None
        return {"id": created.id, "job": created.job}

    @api.get("/users/{id}")
    def get_user(id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> dict[str, Any]:
        user = application.users.get(id)
        if user is None:
            raise HTTPException(404, f"there is no user {id}")
        return user

    @api.get("/stats")
    def stats() -> dict[str, int]:
        found = application.queue.stats()
        return {name: getattr(found, name) for name in found.__struct_fields__} | {
            "enqueue_failed": application.users.enqueue_failed
        }

    return api


def _unavailable() -> list[type[Exception]]:
    """What the drivers and todoku raise when the database cannot do it now. Nothing was stored."""
    kinds: list[type[Exception]] = [sqlite3.Error, todoku.DatabaseUnavailable]
    try:
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is used
        from psycopg_pool import PoolTimeout  # noqa: PLC0415
    except ImportError:
        return kinds
    return [*kinds, psycopg.Error, PoolTimeout]


def _refused(_request: Request, error: Exception) -> JSONResponse:
    """Which field, and what is wrong with it; never what was sent."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - that is what it is registered for
    return JSONResponse({"detail": [_problem(each["loc"], each["msg"]) for each in error.errors()]}, 422)


def _problem(place: tuple[str | int, ...], said: str) -> dict[str, str]:
    field = ".".join(str(part) for part in place[1:]) or "body"
    return {"field": field, "problem": said.removeprefix("Value error, ")}


def _away(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": f"the database cannot do this now ({type(error).__name__})"}, 503)
