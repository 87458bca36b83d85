"""Execute: slots, threads, deadlines, cancellation, lanes, suspects, batches (DESIGN §4 Execute)."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.context import Context
from todoku.engine.registry import Outgoing
from todoku.store.deliveries import Filter


def reasons(world: World) -> list[tuple[str, str | None]]:
    return [(row.status, row.reason) for row in world.deliveries()]


def lease_ends(world: World) -> float:
    """When the lease of the one worker ends."""
    ((at,),) = world.sql("select expires_at from todoku_worker")
    return float(at / 1e6 if world.backend == "sqlite" else at.timestamp())


@pytest.mark.parametrize("outcome", [Retry(after=60, reason="LATER"), Abort("NEVER"), Snooze(60)])
@pytest.mark.parametrize("raised", [True, False])
def test_an_outcome_may_be_returned_or_raised(world: World, crew: Crew, outcome: Any, raised: bool) -> None:
    """DESIGN §1: an outcome is a value."""

    async def handler(ctx: Context) -> Any:
        if raised:
            raise outcome
        return outcome

    crew.handles("warehouse", handler)
    world.publish()
    assert crew.drain() == 1
    expected = {Retry: ("failed", "LATER"), Abort: ("aborted", "NEVER"), Snooze: ("pending", None)}
    assert reasons(world) == [expected[type(outcome)]]


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_an_attempt_past_its_time_is_stopped_and_retried(world: World, crew: Crew, run: Any) -> None:
    """S3: no handler runs for ever; a thread cannot be stopped, so it is abandoned and another takes its place."""
    release = threading.Event()

    async def endless(ctx: Context) -> None:
        await asyncio.sleep(3600)

    def stuck(ctx: Context) -> None:
        release.wait(60)

    crew.handles("warehouse", endless if run == "loop" else stuck, run=run, timeout=0.2)
    world.publish(3)
    try:
        assert crew.drain(concurrency=1) == 3
    finally:
        release.set()
    assert reasons(world) == [("failed", "TIMEOUT")] * 3
    assert {row.error for row in world.deliveries()} == {"warehouse did not end within 0.2 s"}


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_a_timeout_that_a_handler_raises_says_whose_it_is_and_after_how_long(
    world: World, crew: Crew, run: Any
) -> None:
    async def waits(ctx: Context) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)

    def asks(ctx: Context) -> None:
        raise TimeoutError("the bank does not answer")

    crew.handles("warehouse", waits if run == "loop" else asks, run=run)
    world.publish()
    crew.drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("failed", "TIMEOUT")
    what = "TimeoutError" if run == "loop" else "TimeoutError: the bank does not answer"
    assert re.fullmatch(rf"warehouse raised it after \S+ s: {what}", row.error or ""), row.error


def test_the_messages_own_timeout_comes_first(world: World, crew: Crew) -> None:
    async def endless(ctx: Context) -> None:
        await asyncio.sleep(3600)

    crew.handles("warehouse", endless)
    world.publish()
    world.sql("update todoku_delivery set timeout = 0.1")
    crew.drain()
    assert reasons(world) == [("failed", "TIMEOUT")]


def test_a_handler_that_finishes_although_it_was_stopped_has_succeeded(world: World, crew: Crew) -> None:
    """I7: a true success stays true."""

    async def stubborn(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return

    crew.handles("warehouse", stubborn, timeout=0.1)
    world.publish(2)
    crew.drain(concurrency=1)
    assert len(world.history()) == 2


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_cancelling_a_running_attempt_reaches_its_handler(world: World, crew: Crew, run: Any) -> None:
    """DESIGN §2: a flag that its owner obeys."""
    started = threading.Event()

    async def wait(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(3600)

    def look(ctx: Context) -> None:
        started.set()
        until(ctx.cancelled, what="the request to stop")
        raise RuntimeError("stopped")

    crew.handles("warehouse", wait if run == "loop" else look, run=run)
    world.publish()
    with crew.running():
        assert started.wait(30)
        world.store.acts.cancel(Filter(), SOMEBODY)
        until(lambda: reasons(world) == [("aborted", "CANCELLED")], what="the cancellation")


def test_a_done_that_came_first_wins_over_a_cancellation(world: World, crew: Crew) -> None:
    """DESIGN §2: cancelled while it runs, but it arrived."""
    started, go = threading.Event(), threading.Event()

    def finish(ctx: Context) -> None:
        started.set()
        assert go.wait(30)

    crew.handles("warehouse", finish, run="thread")
    world.publish()
    with crew.running():
        assert started.wait(30)
        world.store.acts.cancel(Filter(), SOMEBODY)
        go.set()
        until(lambda: len(world.history()) == 1, what="the success")


def test_larger_priorities_start_first_also_within_one_worker(world: World, crew: Crew) -> None:
    """DESIGN §4: a high priority never waits behind a hoard in some worker's memory."""
    order: list[int] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.claim.priority)

    crew.handles("warehouse", note)
    for priority in (0, 3, 15, 1):
        world.publish(priority=priority)
    crew.drain(concurrency=1)
    assert order == [15, 3, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["loop", "thread"])
@pytest.mark.parametrize("before", ["slow ones", "a burst of fast ones"])
def test_MEND_4_an_urgent_job_has_no_more_in_front_than_slots(world: World, crew: Crew, run: Any, before: str) -> None:
    """MEND-4: 3 slots, 300 slow jobs, then one of priority 15: it was behind 10 to 21 others. Whatever came before."""
    started: list[tuple[str, int]] = []
    slots, seconds = 3, 2.0

    async def handle(ctx: Context) -> None:
        started.append((ctx.topic, ctx.claim.priority))
        if ctx.topic == "slow":
            await asyncio.sleep(seconds)

    def handle_in_thread(ctx: Context) -> None:
        started.append((ctx.topic, ctx.claim.priority))
        if ctx.topic == "slow":
            time.sleep(seconds)

    crew.handles("warehouse", handle if run == "loop" else handle_in_thread, run=run)
    if before == "a burst of fast ones":
        world.publish(2000, topic="fast")
    world.publish(300, topic="slow")
    with crew.running(concurrency=slots, drain_grace_sec=5):
        until(lambda: started.count(("slow", 0)) >= (slots if before != "slow ones" else 2 * slots), what="slow work")
        in_front = len(started)
        world.publish(topic="slow", priority=15)
        until(lambda: ("slow", 15) in started, what="the urgent one")
        assert started.index(("slow", 15)) - in_front <= slots


def test_a_lane_runs_in_order_and_stops_at_its_first_failure(world: World, crew: Crew) -> None:
    """I10: what follows a failed head waits its turn, and burns no attempt."""
    order: list[tuple[str | None, int]] = []

    async def note(ctx: Context) -> Any:
        number = ctx.claim.message_seq
        order.append((ctx.key, number))
        if ctx.key == "a" and len([1 for key, _ in order if key == "a"]) == 2:
            return Retry(after=60)
        return None

    crew.handles("warehouse", note)
    for _ in range(4):
        for key in ("a", "b"):
            world.publish(ordered=True, key=key)
    crew.drain()
    in_a = [number for key, number in order if key == "a"]
    in_b = [number for key, number in order if key == "b"]
    assert in_a == sorted(in_a)
    assert len(in_a) == 2
    assert in_b == sorted(in_b)
    assert len(in_b) == 4
    assert [(row.status, row.attempts) for row in world.deliveries()] == [("failed", 1), ("pending", 0), ("pending", 0)]
    world.advance(61)
    crew.drain()
    in_a = [number for key, number in order if key == "a"]
    assert in_a[1] == in_a[2]
    assert in_a[2:] == sorted(in_a[2:])
    assert len(world.history()) == 8


def test_H6_a_delivery_whose_owner_died_runs_while_nothing_else_is_held(world: World, crew: Crew) -> None:
    """H6: a message that kills workers takes nobody with it."""
    held: list[int] = []

    async def look(ctx: Context) -> None:
        if ctx.claim.lost:
            held.append(len(world.store.leases.owned(ctx.claim.worker)))
        await asyncio.sleep(0.01)

    crew.handles("warehouse", look)
    world.publish(5)
    world.claim(world.worker(lease=30))
    world.publish(50)
    world.advance(31)
    world.store.leases.reclaim()
    assert crew.drain() == 55
    assert held == [1] * 5


class Postbox:
    """A destination that takes batches, and refuses some."""

    name = "postbox"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.bad: set[str] = set()

    async def send(self, batch: Sequence[Outgoing]) -> Sequence[Outcome] | None:
        self.batches.append([message.payload.decode() for message in batch])
        if any(message.payload.decode() in self.bad for message in batch):
            raise ValueError("one of these is broken")
        return None


def test_a_destination_gets_batches(world: World, crew: Crew) -> None:
    """DESIGN §7: 32 handed to a batching destination at once."""
    postbox = Postbox()
    crew.sends(postbox, batch=32)
    world.publish(100, to=["postbox"])
    assert crew.drain(concurrency=64) == 100
    assert max(map(len, postbox.batches)) > 1
    assert max(map(len, postbox.batches)) <= 32
    assert sum(map(len, postbox.batches)) == 100


def test_one_bad_message_costs_its_batch_neighbours_nothing(world: World, crew: Crew) -> None:
    """I13: each is sent alone then, and only the bad one fails."""
    postbox = Postbox()
    postbox.bad = {'{"n":3}'}
    crew.sends(postbox, batch=32)
    world.publish(10, to=["postbox"])
    crew.drain(concurrency=16)
    assert reasons(world) == [("failed", "INTERNAL_ERROR")]
    assert len(world.history()) == 9
    assert {row.attempts for row in world.history()} == {1}


def test_a_destination_may_answer_for_each_message(world: World, crew: Crew) -> None:
    class Choosy(Postbox):
        async def send(self, batch: Sequence[Outgoing]) -> Sequence[Outcome] | None:
            return [Abort("ODD") if int(message.payload.decode()[5:-1]) % 2 else Done() for message in batch]

    crew.sends(Choosy(), batch=8)
    world.publish(10, to=["postbox"])
    crew.drain(concurrency=16)
    assert reasons(world) == [("aborted", "ODD")] * 5
    assert len(world.history()) == 5


def test_a_kept_result_is_stored_and_an_impossible_one_does_not_undo_the_work(world: World, crew: Crew) -> None:
    results: list[object] = [{"sent": 3}, object()]

    async def give(ctx: Context) -> object:
        return results.pop(0)

    crew.handles("warehouse", give, keep_result=True)
    world.publish(2)
    crew.drain(concurrency=1)
    first, second = world.history()
    assert world.store.deliveries.result(first.id) == '{"sent":3}'
    assert world.store.deliveries.result(second.id) is None


def test_a_payload_is_what_was_published_and_the_key_for_the_outside_stays_the_same(world: World, crew: Crew) -> None:
    keys: list[str] = []

    async def note(ctx: Context) -> Any:
        keys.append(ctx.idempotency_key)
        return Retry(after=0) if ctx.attempt < 3 else None

    crew.handles("warehouse", note)
    world.publish(headers={"x-tenant": "7"})
    crew.drain()
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_a_blocked_loop_is_reported_by_the_name_of_its_handler(world: World, crew: Crew) -> None:
    """A handler that blocks the event loop costs neither the lease nor the health, and is named."""
    free = threading.Event()

    async def block(ctx: Context) -> None:
        free.wait(60)

    crew.handles("warehouse", block)
    world.publish()
    with crew.running(lease_sec=4) as worker:
        until(lambda: worker.health().blocked == "warehouse", what="the report")
        before, ends = worker.health().worker_id, lease_ends(world)
        until(lambda: lease_ends(world) > ends + 4, what="a lease that was renewed for longer than it lasts")
        assert worker.health().worker_id == before
        assert [row.status for row in world.deliveries()] == ["sending"]
        free.set()
        until(lambda: len(world.history()) == 1, what="the end")
        until(lambda: worker.health().blocked is None, what="the all-clear")


def test_neither_lanes_nor_the_rest_starve_each_other(world: World, crew: Crew) -> None:
    """§4: with more due than a worker can take, both come to their turn."""
    order: list[bool] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.key is not None)

    crew.handles("warehouse", note)
    world.publish(3000)
    for number in range(300):
        world.publish(ordered=True, key=f"k{number % 30}")
    crew.drain(concurrency=2)
    assert len(order) == 3300
    assert order.index(True) < 1500, "the lanes did not wait for all the others"
    assert order.index(False) < 1500
