"""Who may ask for what: denied by default, by scope, and not too often (webhooks.md §3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from tests.support.serving import Server, Watching
from tests.support.world import SOMEBODY
from todoku.api.auth import Gate, GuardedRoute, bearer_of
from todoku.api.ingest import ingest_endpoint
from todoku.api.problem import Refused
from todoku.api.request_frame import RequestFrame
from todoku.api.server import Routing, context_of, server_routes
from todoku.core.scope import Scope
from todoku.engine.http import api_tokens
from todoku.engine.http.api_tokens import Token

OPEN = {
    "/healthz", "/readyz", "/ingest/{source}", "/api/v1/openapi.json", "/v2/workflows/hooks/{user}/{run}/{token}",
}  # fmt: skip
"""What needs no token: each of them for a reason."""

PATHS = {"id": "1", "name": "x", "source": "stripe"}


def routes(server: Server) -> list[GuardedRoute]:
    context = context_of(server.box)
    return server_routes(context, ingest_endpoint(context), Watching(server.box))


def filled(path: str) -> str:
    for name, value in PATHS.items():
        path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:path}}", value)
    return path


# ------------------------------------------------------------------------------------------- by default


def test_every_route_says_what_it_needs_and_few_need_nothing(server: Server) -> None:
    found = routes(server)
    assert all(isinstance(route, GuardedRoute) for route in found)
    assert {route.path for route in found if route.access == "open"} == OPEN


def test_no_route_answers_without_a_token_but_the_open_ones(server: Server) -> None:
    """The test walks all of them: one that is added without a thought is found here."""
    walked = 0
    for route in routes(server):
        if route.access == "open":
            continue
        for method in route.methods or ():
            answer = server.client().request(method, filled(route.path))
            assert answer.status_code == 401, f"{method} {route.path}"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            walked += 1
    assert walked > 30


def test_a_route_that_says_nothing_is_refused_whoever_asks() -> None:
    async def secret(_: Request) -> Response:
        return PlainTextResponse("secret")

    app = RequestFrame(Routing([Route("/a", secret), Mount("/b", routes=[Route("/c", secret)])]))
    for path in ("/a", "/b", "/b/c"):
        answer = asked(app, path, "whatever")
        assert answer.status_code in (403, 404)
        assert "secret" not in answer.text


def test_a_route_cannot_need_a_scope_that_nobody_checks() -> None:
    with pytest.raises(TypeError, match="has no gate"):
        GuardedRoute("/a", lambda _: Response(), methods=["GET"], access="read")


# --------------------------------------------------------------------------------------------- by scope


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ("publish", {"read": 403, "operate": 403, "admin": 403}),
        ("read", {"read": 200, "operate": 403, "admin": 403}),
        ("operate", {"read": 200, "operate": 200, "admin": 403}),
        ("admin", {"read": 200, "operate": 200, "admin": 200}),
    ],
)
def test_a_token_allows_what_its_scope_contains(server: Server, scope: Scope, status: dict[Scope, int]) -> None:
    client = server.client(scope)
    calls: dict[Scope, Callable[[], httpx.Response]] = {
        "read": lambda: client.get("/api/v1/queues"),
        "operate": lambda: client.post("/api/v1/queues/q/pause", json={"why": "a test"}),
        "admin": lambda: client.get("/api/v1/tokens"),
    }
    assert {needed: call().status_code for needed, call in calls.items()} == status


def test_a_token_that_is_revoked_or_over_opens_nothing(server: Server) -> None:
    token, text = api_tokens.create(server.box.store, SOMEBODY, name="gone", scopes=["admin"])
    assert token.id is not None
    api_tokens.revoke(server.box.store, token.id, SOMEBODY)
    answer = server.client().get("/api/v1/queues", headers={"authorization": f"Bearer {text}"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic YTpi", "bearer", "Token {}", "Bearer {} x", "Bearer  x {}", "{}"]
)
def test_what_is_no_bearer_token_is_none(server: Server, header: str) -> None:
    text = header.replace("{}", server.token("admin"))
    assert server.client().get("/api/v1/queues", headers={"authorization": text}).status_code == 401


def test_two_tokens_are_none(server: Server) -> None:
    """Whichever a proxy in front looked at, it is not taken for the other."""
    text = f"Bearer {server.token('admin')}"
    answer = server.client().get("/api/v1/queues", headers=[("authorization", text), ("authorization", "Bearer x")])
    assert answer.status_code == 401


def test_a_token_in_the_query_is_for_v2_alone(server: Server) -> None:
    token = server.token("admin")
    assert server.client().get(f"/api/v1/queues?qstash_token={token}").status_code == 401

    async def who(request: Request) -> Response:
        return PlainTextResponse(bearer_of(request).name)

    gate = Gate(api_tokens.TokenChecker(server.box.store, server.box.settings), rate=10)
    app = RequestFrame(Routing([GuardedRoute("/v2/who", who, methods=["GET"], access="read", gate=gate)]))
    assert asked(app, f"/v2/who?qstash_token={token}").text == "ada"
    assert asked(app, "/v2/who?qstash_token=wrong").status_code == 401
    assert asked(app, f"/v2/who?qstash_token={token}", "wrong").status_code == 401, "the header is the one that counts"


# --------------------------------------------------------------------------------------------- too often


class Keys:
    """Tokens that are their own names; counts who asks."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check(self, text: str) -> Token | None:
        self.checked.append(text)
        return Token(id=None, name=text, prefix=text, scopes=("read",)) if text.startswith("good") else None

    def recall(self, text: str) -> tuple[bool, Token | None]:
        return False, None


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def admit(gate: Gate, token: str, *, address: str = "10.0.0.1") -> str | Refused:
    """The name of whoever is let in, or the refusal."""
    scope: dict[str, Any] = {
        "type": "http", "path": "/api/v1/x", "query_string": b"", "client": (address, 1),
        "headers": [(b"authorization", b"Bearer " + token.encode())],
    }  # fmt: skip
    try:
        return asyncio.run(gate.admit(Request(scope), "read")).name
    except Refused as refused:
        return refused


def status_of(outcome: str | Refused) -> int:
    return outcome.status if isinstance(outcome, Refused) else 200


def test_a_token_may_ask_so_often_and_is_told_when_again() -> None:
    clock = Clock()
    gate = Gate(Keys(), rate=2, clock=clock)
    assert [status_of(admit(gate, "good-a")) for _ in range(5)] == [200, 200, 200, 200, 429]
    refused = admit(gate, "good-a")
    assert isinstance(refused, Refused)
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["burst-ratelimit-limit"] == "4"
    assert refused.headers["burst-ratelimit-remaining"] == "0"
    assert int(refused.headers["burst-ratelimit-reset"]) > 0
    assert admit(gate, "good-b") == "good-b", "others are not kept waiting"
    clock.now += 0.5
    assert [status_of(admit(gate, "good-a")) for _ in range(2)] == [200, 429]


def test_SEC_8_who_guesses_tokens_is_told_to_wait_and_right_tokens_never_are() -> None:
    keys, clock = Keys(), Clock()
    gate = Gate(keys, rate=1000, clock=clock)
    outcomes = [status_of(admit(gate, f"bad-{n}")) for n in range(50)]
    assert outcomes == [401] * 20 + [429] * 30
    assert admit(gate, "good-new") == "good-new", "from the same address, and never seen before"
    assert status_of(admit(gate, "bad-new")) == 429
    assert status_of(admit(gate, "bad-new", address="10.0.0.2")) == 401
    clock.now += 1
    assert [status_of(admit(gate, "bad-again")) for _ in range(2)] == [401, 429]


def test_an_ipv6_network_is_one_guesser() -> None:
    gate = Gate(Keys(), rate=1000, clock=Clock())
    outcomes = [status_of(admit(gate, f"bad-{n}", address=f"2001:db8:1:2::{n:x}")) for n in range(21)]
    assert outcomes[-1] == 429


def test_a_429_is_a_problem_with_its_headers(server: Server) -> None:
    gate = Gate(Keys(), rate=0.5, clock=Clock())
    app = RequestFrame(Routing([GuardedRoute("/a", lambda _: Response(), methods=["GET"], access="read", gate=gate)]))
    assert asked(app, "/a", "good").status_code == 200
    answer = asked(app, "/a", "good")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["error"].startswith("too many requests")


def asked(app: RequestFrame, path: str, token: str | None = None) -> httpx.Response:
    """What an application answers to a GET."""

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:
            return await client.get(path, headers={} if token is None else {"authorization": f"Bearer {token}"})

    return asyncio.run(get())
