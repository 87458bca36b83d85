"""examples/users over HTTP: what is accepted, what is refused and how, on each database (S3-2, S3-73)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from users_example.api import make_api
from users_example.application import Application

from tests.examples.users_at_work import application_at, sql

ADA = {"name": "Ada", "email": "ada@users.example", "additional_props": {"hobby": "chess", "score": 42}}


async def call(application: Application, method: str, path: str, body: Any = None) -> httpx.Response:
    """One request, straight into the ASGI application. A body that is text is sent as it is."""
    transport = httpx.ASGITransport(make_api(application), raise_app_exceptions=False)
    content = body if isinstance(body, str | None) else json.dumps(body)
    async with httpx.AsyncClient(transport=transport, base_url="http://users") as client:
        return await client.request(method, path, content=content, headers={"content-type": "application/json"})


@pytest.fixture
def alone(sqlite_url: str, tmp_path: Path) -> Iterator[Application]:
    """Where the database makes no difference."""
    with application_at(sqlite_url, tmp_path) as application:
        yield application


async def test_a_user_is_created_welcomed_and_found(application: Application) -> None:
    answer = await call(application, "POST", "/users", ADA)
    assert answer.status_code == 201
    created = answer.json()
    assert created["job"] is not None
    before = (await call(application, "GET", f"/users/{created['id']}")).json()
    assert (before["name"], before["email"], before["profile"]) == ("Ada", "ada@users.example", None)
    await application.box.adrain()
    after = (await call(application, "GET", f"/users/{created['id']}")).json()
    assert after["profile"] == {"hobby": "chess", "location": None, "score": 42.0}
    stats = (await call(application, "GET", "/stats")).json()
    assert stats == {"pending": 0, "processing": 0, "completed": 1, "failed": 0, "enqueue_failed": 0}


async def test_an_address_that_is_taken_is_a_conflict_by_its_field(application: Application) -> None:
    await call(application, "POST", "/users", ADA)
    answer = await call(application, "POST", "/users", ADA)
    assert (answer.status_code, answer.json()["detail"]) == (409, [{"field": "email", "problem": "is taken"}])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": "ada@users.example"}, "name"),
        (ADA | {"name": " "}, "name"),
        (ADA | {"name": "A\nB"}, "name"),
        (ADA | {"name": "A\x00"}, "name"),
        (ADA | {"name": "x" * 201}, "name"),
        (ADA | {"name": 7}, "name"),
        (ADA | {"email": "nobody"}, "email"),
        (ADA | {"email": "a@b\r\nBcc: c@d"}, "email"),
        (ADA | {"email": "a@b, c@d"}, "email"),
        (ADA | {"additional_props": []}, "additional_props"),
        (ADA | {"additional_props": {"hobby": "x" * 2_000_000}}, "additional_props"),
        (ADA | {"additional_props": {"score": float("nan")}}, "additional_props"),
        (ADA | {"validation_mode": "maybe"}, "validation_mode"),
        (ADA | {"admin": True}, "admin"),
        ("{not json", "1"),
        ('{"name": "\\ud800", "email": "a@b"}', "name"),
        ("[]", "body"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_its_field_and_nothing_is_stored(
    alone: Application, body: Any, field: str
) -> None:
    answer = await call(alone, "POST", "/users", body)
    assert answer.status_code == 422, answer.text
    assert [problem["field"] for problem in answer.json()["detail"]] == [field]
    assert sql(alone.settings.database, "select (select count(*) from users), (select count(*) from job_queue)") == [
        (0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("id", "status"), [("7", 404), ("0", 422), ("9" * 30, 422), ("ada", 422)])
async def test_a_user_that_is_not_there_is_not_found(alone: Application, id: str, status: int) -> None:
    assert (await call(alone, "GET", f"/users/{id}")).status_code == status


async def test_a_database_that_cannot_is_said_and_no_user_is_made(application: Application) -> None:
    """I2: by default the user is not created without the job."""
    sql(application.settings.database, "alter table todoku_delivery rename to away")
    answer = await call(application, "POST", "/users", ADA)
    assert (answer.status_code, sql(application.settings.database, "select count(*) from users")) == (503, [(0,)])


async def test_with_best_effort_the_user_is_there_without_a_job(url: str, tmp_path: Path) -> None:
    """S3-72."""
    with application_at(url, tmp_path, enqueue="best_effort") as application:
        sql(url, "alter table todoku_delivery rename to away")
        answer = await call(application, "POST", "/users", ADA)
        assert (answer.status_code, answer.json()) == (201, {"id": 1, "job": None})
        assert application.users.enqueue_failed == 1
