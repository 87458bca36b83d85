"""Around every request: an id in and out, and errors as problem details, whatever happens inside (S4-50, S4-51)."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.support.serving import Server
from todoku.api.problem import Refused, error_response
from todoku.api.request_frame import RequestFrame
from todoku.core import errors


def test_every_answer_has_a_request_id_its_callers_if_it_is_sane(server: Server) -> None:
    client = server.client()
    assert client.get("/healthz", headers={"x-request-id": "order-7.a"}).headers["x-request-id"] == "order-7.a"
    made = client.get("/nowhere").headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert client.get("/nowhere").headers["x-request-id"] != made


@pytest.mark.parametrize("id", ["", "a b", "a\tb", "x" * 129, "<script>", "-leads", "ü".encode()])
def test_a_strange_request_id_is_not_repeated(server: Server, id: str | bytes) -> None:
    answer = server.client().get("/healthz", headers=[(b"x-request-id", id if isinstance(id, bytes) else id.encode())])
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


def test_an_error_is_a_problem_that_also_carries_error(server: Server) -> None:
    answer = server.client().get("/nowhere", headers={"x-request-id": "r-1"})
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": problem["error"],
        "error": problem["error"],
        "request_id": "r-1",
    }


def test_a_method_that_is_not_there_says_which_are(server: Server) -> None:
    answer = server.client().put("/api/v1/schedules")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidMessage("x"), 422),
        (errors.NoRoute("x"), 422),
        (errors.InvalidAct("x"), 422),
        (errors.NotThere("x"), 404),
        (errors.NoSuchMessage("x"), 404),
        (errors.IdempotencyConflict("x"), 409),
        (errors.InProgress("x"), 409),
        (errors.IllegalTransition("x"), 409),
        (errors.DatabaseBusy("x"), 503),
        (errors.DatabaseUnavailable("x"), 503),
        (errors.SchemaError("x"), 503),
        (errors.StoreError("x"), 500),
        (Refused(418, "x"), 418),
        (RuntimeError("x"), 500),
    ],
)
def test_each_error_has_its_status(error: Exception, status: int) -> None:
    said = error_response(error)
    assert said.status == status
    assert said.unexpected == (status == 500)
    assert ("retry-after" in said.headers) == (status == 503 or isinstance(error, errors.InProgress))


@pytest.mark.parametrize("kind", [errors.DatabaseUnavailable, errors.DatabaseBusy, errors.SchemaError, OSError])
def test_what_a_database_says_is_not_told(kind: type[Exception]) -> None:
    """Its words name hosts, users and files."""
    assert "sesame" not in error_response(kind("connection to db.internal failed: password sesame")).detail


def test_an_unexpected_error_is_told_without_internals_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The answer names the request; the log has the rest, but for what a path and a query may hold."""

    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise KeyError("a secret of the house")

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(RequestFrame(broken)), base_url="http://a"
        ) as client:
            path = "/v2/publish/https://me:pw@example.com/x?qstash_token=sesame"
            return await client.get(path, headers={"x-request-id": "r-9"})

    with caplog.at_level("ERROR", logger="todoku"):
        answer = asyncio.run(asked())
    assert (answer.status_code, answer.json()["request_id"]) == (500, "r-9")
    assert "house" not in answer.text
    assert "REQUEST_FAILED" in caplog.text
    assert "r-9" in caplog.text
    for secret in ("sesame", "pw@", "example.com"):
        assert secret not in caplog.text
