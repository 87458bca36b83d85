"""SEC-7: an answer kept for an `Idempotency-Key` is given to the caller of the first request alone."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Response

import todoku
from tests.support.world import World
from todoku.engine.ledger import Answer
from todoku.integrations.fastapi import once
from todoku.integrations.idempotency import (
    IdempotencyMiddleware,
    Principal,
    by_authorization,
    by_cookie,
    by_credentials,
)

KEY = {"Idempotency-Key": "k"}

APART: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"Cookie": "session=ada"}, {"Cookie": "session=bob"}),
    ({"Cookie": "session=ada"}, {}),
    ({"Cookie": "session=ada"}, {"Cookie": "session="}),
    ({"Cookie": "theme=dark; session=ada"}, {"Cookie": "theme=dark; session=bob"}),
    ({"Cookie": "a=1; b=2"}, {"Cookie": "a=2; b=1"}),
    ({"Authorization": "Bearer x", "Cookie": "session=ada"}, {"Authorization": "Bearer x", "Cookie": "session=bob"}),
    ({"Authorization": "Bearer x", "Cookie": "session=ada"}, {"Authorization": "Bearer x"}),
    ({"Authorization": "Bearer x"}, {"Cookie": "Bearer x"}),
    ({"Cookie": "session=ada"}, {"Authorization": '[["cookie session","ada"]]'}),
    ({"X-Api-Key": "a"}, {"X-Api-Key": "b"}),
    ({"X_Api_Key": "a"}, {"X_Api_Key": "b"}),
    ({"Proxy-Authorization": "Basic a"}, {"Proxy-Authorization": "Basic b"}),
    ({"X-Forwarded-Client-Cert": "Hash=a"}, {"X-Forwarded-Client-Cert": "Hash=b"}),
    ({"X-SSL-Client-DN": "CN=ada"}, {"X-SSL-Client-DN": "CN=bob"}),
    ({"Client-Cert": ":a:"}, {"Client-Cert": ":b:"}),
    ({"X-Arr-ClientCert": "a"}, {"X-Arr-ClientCert": "b"}),
    ({"X-Forwarded-User": "ada"}, {"X-Forwarded-User": "bob"}),
    ({"X-Goog-Authenticated-User-Email": "ada"}, {"X-Goog-Authenticated-User-Email": "bob"}),
]

ALIKE: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {}),
    ({}, {"User-Agent": "other", "X-Request-Id": "7", "X-Csrf-Token": "fresh", "Accept-Language": "ja"}),
    ({"Cookie": "a=1; b=2"}, {"Cookie": "b=2;  a=1"}),
    ({"Authorization": "Bearer x"}, {"authorization": " Bearer x "}),
    ({"Authorization": "Bearer x"}, {"Authorization": "Bearer x", "X-Forwarded-For": "10.0.0.1"}),
]


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    yield box
    box.close()


class Bank:
    """Two endpoints that say who is asking: behind the middleware, and with the dependency of FastAPI."""

    def __init__(self, box: todoku.App, world: World, **options: Any) -> None:
        async def session() -> AsyncIterator[Any]:
            connection = world.connect()
            try:
                with connection:
                    yield connection
            finally:
                connection.close()

        self.calls = 0
        self.certificates: dict[str, Any] = {}
        self.api = FastAPI()
        self.api.post("/kept")(self.balance)
        done = once(box, session, scope="balance", **options)

        @self.api.post("/once")
        async def balance_once(done: Answer = Depends(done)) -> Any:  # noqa: B008 - as FastAPI reads it
            if done.first:
                self.calls += 1
                done.store({"call": self.calls})
            return done.response

        self.api.add_middleware(IdempotencyMiddleware, box=box, paths=["/kept"], **options)

    async def balance(self, response: Response) -> dict[str, int]:
        self.calls += 1
        response.set_cookie("session", f"secret-{self.calls}")
        response.set_cookie("other", f"more-{self.calls}")
        return {"call": self.calls}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if name := dict(scope["headers"]).get(b"x-handshake"):
            scope["extensions"] = {"tls": self.certificates[name.decode()]}
        await self.api(scope, receive, send)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self), base_url="http://bank")

    async def post(self, path: str, headers: dict[str, str]) -> httpx.Response:
        async with self.client() as client:  # a new one, which has no cookies
            return await client.post(path, content=b"{}", headers={**KEY, **headers})


@pytest.mark.parametrize("path", ["/kept", "/once"])
@pytest.mark.parametrize(("ada", "bob"), APART)
async def test_two_callers_have_two_answers(
    box: todoku.App, world: World, path: str, ada: dict[str, str], bob: dict[str, str]
) -> None:
    bank = Bank(box, world)
    answers = [(await bank.post(path, headers)).json() for headers in (ada, bob, ada, bob)]
    assert answers == [{"call": 1}, {"call": 2}, {"call": 1}, {"call": 2}]


@pytest.mark.parametrize("path", ["/kept", "/once"])
@pytest.mark.parametrize(("first", "again"), ALIKE)
async def test_a_caller_that_repeats_is_known_again(
    box: todoku.App, world: World, path: str, first: dict[str, str], again: dict[str, str]
) -> None:
    bank = Bank(box, world)
    assert [(await bank.post(path, headers)).json() for headers in (first, again)] == [{"call": 1}] * 2


@pytest.mark.parametrize("path", ["/kept", "/once"])
async def test_a_client_is_known_by_its_certificate(box: todoku.App, world: World, path: str) -> None:
    """As a server tells of it that ends TLS itself: the TLS extension of ASGI."""
    bank = Bank(box, world)
    bank.certificates = {
        "ada": {"client_cert_chain": ["-----ada-----", "-----ca-----"], "client_cert_name": "CN=ada"},
        "bob": {"client_cert_chain": ["-----bob-----", "-----ca-----"], "client_cert_name": "CN=ada"},
        "eve": {"client_cert_chain": [], "client_cert_name": None},
    }
    answers = [(await bank.post(path, {"X-Handshake": name})).json() for name in ("ada", "bob", "eve", "ada")]
    assert answers == [{"call": 1}, {"call": 2}, {"call": 3}, {"call": 1}]


async def test_two_authorizations_are_not_one(box: todoku.App, world: World) -> None:
    """todoku does not know which of them the application believes."""
    bank = Bank(box, world)
    async with bank.client() as client:
        for other in (b"ada", b"bob"):
            headers = [(b"authorization", b"first"), (b"authorization", other), (b"idempotency-key", b"k")]
            await client.post("/kept", headers=headers)
    assert bank.calls == 2


async def test_a_cookie_that_was_set_is_not_kept(box: todoku.App, world: World) -> None:
    bank = Bank(box, world)
    first, again = [await bank.post("/kept", {}) for _ in range(2)]
    assert len(first.headers.get_list("set-cookie")) == 2
    assert (again.json(), again.headers.get_list("set-cookie")) == (first.json(), [])
    assert again.headers["content-type"] == first.headers["content-type"]
    ((stored,),) = world.sql("select response from todoku_ledger")
    assert "secret-1" not in str(stored)
    assert "more-1" not in str(stored)


async def test_a_cookie_that_an_older_version_kept_is_not_sent(box: todoku.App, world: World) -> None:
    bank = Bank(box, world)
    await bank.post("/kept", {})
    ((stored,),) = world.sql("select response from todoku_ledger")
    before = json.loads(stored) if isinstance(stored, str) else stored
    before["headers"].append(["Set-Cookie", "session=old"])
    world.sql("update todoku_ledger set response = ?", json.dumps(before))
    assert "set-cookie" not in (await bank.post("/kept", {})).headers


class Stated:
    """What is logged of principals."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, logger="todoku")

    def lines(self) -> list[str]:
        return [text for record in self._caplog.records if "PRINCIPAL_UNKNOWN" in (text := record.getMessage())]


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None: ...


def test_an_endpoint_that_states_no_principal_says_so_at_start(
    box: todoku.App, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Stated(caplog)
    IdempotencyMiddleware(nothing, box, paths=["/payments"])
    once(box, lambda: None, scope="refunds")
    assert len(heard.lines()) == 2
    assert "/payments" in heard.lines()[0]
    assert "refunds" in heard.lines()[1]


@pytest.mark.parametrize("principal", [by_credentials, by_authorization, by_cookie("session"), lambda _scope: "all"])
def test_an_endpoint_that_states_one_is_silent(
    box: todoku.App, caplog: pytest.LogCaptureFixture, principal: Principal
) -> None:
    heard = Stated(caplog)
    IdempotencyMiddleware(nothing, box, principal=principal)
    once(box, lambda: None, scope="refunds", principal=principal)
    assert heard.lines() == []


async def test_a_caller_may_be_known_by_one_cookie(box: todoku.App, world: World) -> None:
    bank = Bank(box, world, principal=by_cookie("session"))
    sent = ["session=ada; visits=1", "visits=2; session=ada", "session=bob; visits=1", "asession=ada", "x=session=ada"]
    answers = [(await bank.post("/kept", {"Cookie": cookie})).json()["call"] for cookie in sent]
    assert answers == [1, 1, 2, 3, 3]
    with pytest.raises(todoku.InvalidSetting):
        by_cookie()


async def test_a_principal_that_is_no_text_is_told(box: todoku.App, world: World) -> None:
    bank = Bank(box, world, principal=lambda scope: scope.get("user"))
    with pytest.raises(todoku.InvalidSetting, match="NoneType"):
        await bank.post("/kept", {})
    assert bank.calls == 0


async def test_what_was_stored_for_an_authorization_before_is_found(box: todoku.App, world: World) -> None:
    """A repeat that comes after the upgrade is a repeat."""
    bank = Bank(box, world)
    await bank.post("/kept", {"Authorization": "Bearer x"})
    ((scope,),) = world.sql("select scope from todoku_ledger")
    assert scope.endswith(f"http:{sha256(b'Bearer x').hexdigest()}")
