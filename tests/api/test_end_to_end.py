"""From enqueue to result, through a worker: what the public surface promises, seen from outside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import todoku
from tests.support.world import World


@dataclass
class Basket:
    items: list[str]
    total: Decimal


def test_jobs_of_every_kind_run_and_their_results_come_back(box: todoku.App) -> None:
    @box.job(keep_result=True)
    async def in_the_loop(ctx: todoku.Context, n: int) -> int:
        await asyncio.sleep(0)
        return n + ctx.attempt

    @box.job(keep_result=True)
    def in_a_thread(basket: Basket, discount: Decimal = Decimal("0.10")) -> Basket:
        return Basket(basket.items, basket.total * (1 - discount))

    @box.job(keep_result=True)
    def nothing() -> None: ...

    one = in_the_loop.enqueue(41)
    two = in_a_thread.enqueue(Basket(["tea"], Decimal("10.00")))
    three = nothing.enqueue()
    assert box.drain() == 3
    assert one.result(timeout=0) == 42
    assert two.result(timeout=0) == Basket(["tea"], Decimal("9.0000"))
    assert three.result(timeout=0) is None


def test_outcomes_may_be_returned_or_raised(box: todoku.App, world: World) -> None:
    calls: list[str] = []

    @box.job(max_attempts=3, backoff=todoku.table(0))
    async def flaky(ctx: todoku.Context, how: str) -> str | todoku.Retry:
        calls.append(how)
        if how == "abort":
            raise todoku.Abort("MAILBOX_UNKNOWN", "no such person")
        if how == "snooze" and calls.count(how) == 1:
            raise todoku.Snooze(timedelta(0))
        if how == "retry" and ctx.attempt == 1:
            return todoku.Retry(after=0, reason="BUSY")
        if how == "error":
            raise ValueError("always")
        return "done"

    handles = {how: flaky.enqueue(how) for how in ("fine", "abort", "snooze", "retry", "error")}
    while box.drain():
        pass
    assert {how: handle.status().value for how, handle in handles.items()} == {
        "fine": "succeeded",
        "abort": "aborted",
        "snooze": "succeeded",
        "retry": "succeeded",
        "error": "aborted",
    }
    assert {how: calls.count(how) for how in handles} == {"fine": 1, "abort": 1, "snooze": 2, "retry": 2, "error": 3}
    (dead,) = world.deliveries(message_id=handles["abort"].id)
    assert (dead.reason, dead.error) == ("MAILBOX_UNKNOWN", "no such person")


def test_a_dead_letter_is_replayed_and_succeeds(box: todoku.App) -> None:
    broken = [True]

    @box.job(keep_result=True)
    def work(n: int) -> int:
        if broken[0]:
            raise todoku.Abort("NOT_YET")
        return n

    handle = work.enqueue(7)
    box.drain()
    with pytest.raises(todoku.JobAborted, match="NOT_YET"):
        handle.result(timeout=0)
    broken[0] = False
    assert box.replay(reason="NOT_YET", by="ada", why="mended").replayed == 1
    assert box.drain() == 1
    assert handle.result(timeout=0) == 7


def test_a_transactional_consumer_writes_with_its_settle(box: todoku.App, world: World) -> None:
    """I6, through `ctx.tx`: the effect and the success are one commit, and an abort leaves nothing of either."""
    world.sql("create table points (customer text, points integer)")
    mark = "?" if world.backend == "sqlite" else "%s"

    @box.on("order.created", transactional=True)
    def points(ctx: todoku.Context, event: dict[str, Any]) -> None:
        ctx.tx.execute(f"insert into points values ({mark}, {mark})", (event["customer"], event["amount"] // 100))
        if event["amount"] < 0:
            raise todoku.Abort("NEGATIVE")

    box.publish_many([("order.created", {"customer": "ada", "amount": n}) for n in (500, -500)], tx=None)
    box.drain()
    assert world.sql("select * from points") == [("ada", 5)]
    assert [delivery.reason for delivery in world.deliveries()] == ["NEGATIVE"]


async def test_an_ordered_consumer_gets_one_key_in_order(box: todoku.App) -> None:
    """I10."""
    seen: dict[str, list[int]] = {"a": [], "b": []}

    @box.on("count.*", ordered=True)
    async def count(ctx: todoku.Context, event: int) -> None:
        await asyncio.sleep(0)
        seen[ctx.key or ""].append(event)

    for n in range(20):
        for key in seen:
            await box.apublish("count.up", n, key=key, tx=None)
    await box.adrain()
    assert seen == {"a": list(range(20)), "b": list(range(20))}


async def test_a_handle_is_awaited_beside_a_worker(box: todoku.App) -> None:
    """`lifespan` runs the worker; the enqueue wakes it."""

    @box.job(keep_result=True)
    async def double(n: int) -> int:
        return 2 * n

    async with box.lifespan():
        handles = [await double.aenqueue(n) for n in range(5)]
        assert [await handle.aresult(timeout=60) for handle in handles] == [0, 2, 4, 6, 8]
        again = await double.using(delay=3600).aenqueue(9)
        assert await again.acancel(by="ada", why="changed her mind")
        with pytest.raises(todoku.JobAborted, match="CANCELLED"):
            await again.aresult(timeout=60)


def test_a_destination_gets_what_its_routes_take(box: todoku.App, capsys: pytest.CaptureFixture[str]) -> None:
    got: list[str] = []

    async def collect(message: todoku.Outgoing) -> None:
        got.append(message.topic)

    box.route("order.**", to=todoku.log())
    box.route("*.created", to=collect)
    message = box.publish("order.created", {"n": 1}, key="7", tx=None)
    box.drain()
    assert got == ["order.created"]
    assert capsys.readouterr().out == f"PUBLISH order.created 7 {message.id}\n"
