"""Workers and limits: what is limited is run as far as its limit goes, and keeps nobody else from work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.limit import Limit
from todoku.engine.context import Context

TWO = Limit(concurrency=2)


class Counting:
    """A handler that knows how many of each key run now, and how many did at most.

    With `reach`, an attempt ends only when so many of its key have run at once: what is allowed must not be left lying.
    """

    def __init__(self, seconds: float = 0.01, *, reach: int = 0) -> None:
        self.seconds = seconds
        self.reach = reach
        self.lock = threading.Lock()
        self.now: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()
        self.done: list[str | None] = []

    async def __call__(self, ctx: Context) -> None:
        with self.lock:
            self.now[ctx.key] += 1
            self.most[ctx.key] = max(self.most[ctx.key], self.now[ctx.key])
        await asyncio.sleep(self.seconds)
        while ctx.key is not None and self.most[ctx.key] < self.reach:  # noqa: ASYNC110 - several loops
            await asyncio.sleep(0.005)
        with self.lock:
            self.now[ctx.key] -= 1
            self.done.append(ctx.key)


def test_a_worker_alone_reaches_the_limit_of_every_key_and_never_exceeds_it(world: World, crew: Crew) -> None:
    handler = Counting(reach=2)
    crew.handles("warehouse", handler, per_key=TWO)
    for key in "abc":
        world.publish(10, key=key, per_key=TWO)
    world.publish(5, per_key=TWO)
    assert crew.drain(concurrency=8) == 35
    assert handler.most["a"] == handler.most["b"] == handler.most["c"] == 2
    assert handler.done.count(None) == 5


def test_two_workers_together_keep_the_limit_of_a_key(world: World, crew: Crew) -> None:
    handler = Counting(reach=2)
    crew.handles("warehouse", handler, per_key=TWO)
    with crew.running(concurrency=4), crew.running(concurrency=4):
        world.publish(30, key="a", per_key=TWO)
        until(lambda: len(world.history()) == 30, what="everything")
    assert handler.most["a"] == 2


def test_a_blocked_key_keeps_no_slot_from_the_others(world: World, crew: Crew) -> None:
    """A hundred calls behind a key that is at its limit: another key's call, published last, runs meanwhile."""
    go = threading.Event()
    handler = Counting()

    async def stuck(ctx: Context) -> None:
        if ctx.key == "stuck":
            with handler.lock:
                handler.now["stuck"] += 1
            while not go.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.005)
        else:
            await handler(ctx)

    crew.handles("warehouse", stuck, per_key=TWO)
    world.publish(100, key="stuck", per_key=TWO, priority=15)
    with crew.running(concurrency=3):
        until(lambda: handler.now["stuck"] == 2, what="two stuck ones")
        world.publish(20, key="free", per_key=TWO)
        until(lambda: handler.done.count("free") == 20, what="the others")
        assert handler.now["stuck"] == 2
        go.set()


def test_keys_with_limits_and_plain_calls_do_not_starve_each_other(world: World, crew: Crew) -> None:
    """Short plain calls that keep every slot busy: a key still runs; keys without end: plain calls still run."""
    plain, keyed = Counting(0.02), Counting(0.002)  # half a minute of plain calls
    crew.handles("plain", plain)
    crew.handles("keyed", keyed, per_key=TWO)
    with crew.running(concurrency=2):
        world.publish(3000, to=("plain",))
        until(lambda: len(plain.done) > 50, what="some plain calls")
        world.publish(10, to=("keyed",), key="a", per_key=TWO)
        until(lambda: len(keyed.done) == 10, what="the key")
        assert len(plain.done) < 3000
        for key in range(40):
            world.publish(1, to=("keyed",), key=str(key), per_key=TWO)
        before = len(plain.done)
        world.publish(20, to=("plain",), priority=0)
        until(lambda: len(plain.done) >= min(before + 20, 3020), what="plain calls beside many keys")


def test_a_limited_queue_runs_beside_one_that_keeps_every_slot_busy(world: World, crew: Crew) -> None:
    plain, narrow = Counting(0.02), Counting(0.002)  # half a minute of plain calls
    crew.handles("plain", plain)
    crew.handles("narrow", narrow)
    world.store.limits.set("narrow", SOMEBODY, of="queue", concurrency=1, rate=None)
    with crew.running(concurrency=2):
        world.publish(3000, to=("plain",))
        until(lambda: len(plain.done) > 50, what="some plain calls")
        world.publish(10, to=("narrow",))
        until(lambda: len(narrow.done) == 10, what="the limited queue")
        assert len(plain.done) < 3000
    assert narrow.most[None] == 1


@pytest.mark.parametrize("limited", ["queue", "key"])
def test_a_rate_is_used_up_and_not_exceeded(world: World, crew: Crew, limited: str) -> None:
    """50 a second: 26 calls take half a second at least, and what the rate allows is not left lying."""
    pace = Limit(rate=50) if limited == "key" else None
    crew.handles("warehouse", per_key=pace)
    if limited == "queue":
        world.store.limits.set("warehouse", SOMEBODY, of="queue", concurrency=None, rate=50)
    with crew.running(concurrency=4), crew.running(concurrency=4):
        began = time.monotonic()
        world.publish(26, key="a", per_key=pace)
        until(lambda: len(world.history()) == 26, what="everything")
    assert time.monotonic() - began >= 25 / 50 - 0.1, "the last one came too soon"


def test_a_key_whose_worker_died_goes_on_when_its_lease_has_ended(world: World, crew: Crew) -> None:
    """H6: what it held is run alone, within the limit."""
    handler = Counting()
    crew.handles("warehouse", handler, per_key=TWO)
    world.publish(6, key="a", per_key=TWO)
    assert len(world.claim_gates(world.worker(lease=30), TWO)) == 2
    world.advance(31)
    with crew.running(concurrency=4, reclaim_interval_sec=0.2):
        until(lambda: len(world.history()) == 6, what="everything")
    assert handler.most["a"] <= 2
    assert sorted(row.attempts for row in world.history()) == [1] * 6
