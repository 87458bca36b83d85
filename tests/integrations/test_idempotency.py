"""`Idempotency-Key` on a real application: what a client sees who repeats, changes or races its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response

import todoku
from tests.support.world import World
from todoku.integrations.idempotency import IdempotencyMiddleware
from todoku.integrations.receiver import ack, dead, retry


class Shop:
    """An application that counts what it does."""

    def __init__(self, box: todoku.App, **options: Any) -> None:
        self.done: list[Any] = []
        self.failing = 0
        self.reached = asyncio.Event()
        self.slow: asyncio.Event | None = None
        self.api = FastAPI()
        self.api.post("/orders", status_code=201)(self.order)
        self.api.get("/orders")(self.orders)
        self.api.add_middleware(IdempotencyMiddleware, box=box, **options)

    async def order(self, request: Request) -> Response:
        self.reached.set()
        if self.slow is not None:
            await self.slow.wait()
        if self.failing:
            self.failing -= 1
            return Response("down", 503)
        self.done.append(await request.json())
        return Response(f'{{"n": {len(self.done)}}}  ', 201, {"X-Order": str(len(self.done))}, "application/json")

    async def orders(self) -> int:
        return len(self.done)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.api), base_url="http://shop")


@pytest.fixture
def box(world: World, url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    yield box
    box.close()


@pytest.fixture
def shop(box: todoku.App) -> Shop:
    return Shop(box)


async def test_a_repeat_has_the_first_one_s_answer_byte_for_byte(shop: Shop) -> None:
    async with shop.client() as client:
        first = await client.post("/orders", json={"a": 1, "b": 2}, headers={"Idempotency-Key": '"k-1"'})
        again = await client.post(
            "/orders", content='{ "b": 2.0, "a": 1 }',
            headers={"Idempotency-Key": "k-1", "Content-Type": "application/json"},
        )  # fmt: skip
        assert (first.status_code, first.content, first.headers["x-order"]) == (201, b'{"n": 1}  ', "1")
        assert (again.status_code, again.content, again.headers.raw) == (201, first.content, first.headers.raw)
        assert (await client.get("/orders")).json() == 1


async def test_another_request_with_the_key_is_refused(shop: Shop, box: todoku.App) -> None:
    async with shop.client() as client:
        await client.post("/orders", json={"a": 1}, headers={"Idempotency-Key": "k"})
        for request in ({"json": {"a": 2}}, {"json": {"a": 1}, "params": {"dry": "1"}}, {"content": b"a"}):
            refused = await client.post("/orders", headers={"Idempotency-Key": "k"}, **request)  # type: ignore[arg-type]
            assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
            assert refused.json()["title"] == "Idempotency-Key is already used"
    other = Shop(box, conflict=409)
    async with other.client() as client:
        assert (await client.post("/orders", json={"a": 3}, headers={"Idempotency-Key": "k"})).status_code == 409
    assert other.done == []


async def test_a_request_without_a_key_is_refused_where_one_is_required(shop: Shop, box: todoku.App) -> None:
    async with shop.client() as client:
        assert (await client.post("/orders", json={})).status_code == 400
        assert (await client.post("/orders", json={}, headers={"Idempotency-Key": "k" * 600})).status_code == 400
        assert shop.done == []
    lenient = Shop(box, required=False)
    async with lenient.client() as client:
        assert (await client.post("/orders", json={})).status_code == 201


async def test_while_the_first_runs_the_others_are_told_to_come_back(shop: Shop) -> None:
    shop.slow = asyncio.Event()
    async with shop.client() as client:

        def post() -> Any:
            return client.post("/orders", json={"a": 1}, headers={"Idempotency-Key": "k"})

        first = asyncio.create_task(post())
        await shop.reached.wait()
        second = await post()
        assert (second.status_code, second.headers["retry-after"]) == (409, "1")
        shop.slow.set()
        assert (await first).status_code == 201
        assert (await post()).content == (await first).content
    assert len(shop.done) == 1


async def test_a_server_error_is_not_kept(shop: Shop) -> None:
    shop.failing = 1
    async with shop.client() as client:
        answers = [await client.post("/orders", json={}, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 201, 201]
    assert len(shop.done) == 1


async def test_an_answer_is_given_to_nobody_else(shop: Shop) -> None:
    async with shop.client() as client:
        for name in ("ada", "bob", "ada"):
            await client.post("/orders", json={"by": name}, headers={"Idempotency-Key": "k", "Authorization": name})
    assert shop.done == [{"by": "ada"}, {"by": "bob"}]


async def test_an_answer_too_large_to_keep_is_sent_once_and_its_request_done_once(box: todoku.App) -> None:
    shop = Shop(box, largest=4)
    async with shop.client() as client:
        answers = [await client.post("/orders", content=b"{}", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 409]
        assert "too large to be stored" in answers[1].json()["detail"]
        assert (await client.post("/orders", content=b"12345", headers={"Idempotency-Key": "x"})).status_code == 413
    assert len(shop.done) == 1


def test_a_receiver_says_what_its_sender_understands() -> None:
    from todoku.core.failure import NON_RETRYABLE_HEADER, classify_status

    assert classify_status(ack().status_code) == todoku.Done()
    later, never = retry(1.5), dead("MISSING_PARTICIPANT")
    assert later.headers["retry-after"] == "2"
    assert isinstance(classify_status(later.status_code, retry_after=2), todoku.Retry)
    final = never.headers[NON_RETRYABLE_HEADER] == "true"
    assert isinstance(classify_status(never.status_code, final=final), todoku.Abort)
    assert json.loads(never.body)["reason"] == "MISSING_PARTICIPANT"
    assert {answer.media_type for answer in (later, never)} == {"application/problem+json"}  # S4-51
