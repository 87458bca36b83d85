"""A worker's life: leases, draining, losing the database, limits, breakers (DESIGN §4 Lease, I3, I11, I12)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.errors import DatabaseUnavailable
from todoku.core.message import Claimed
from todoku.core.outcome import Outcome, Retry
from todoku.engine.context import Context
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Outgoing
from todoku.engine.worker.breakers import THRESHOLD
from todoku.store.failpoint import armed, lose


def statuses(world: World) -> list[str]:
    return [row.status for row in world.deliveries()]


def test_I11_draining_gives_back_what_has_not_started_with_its_attempt(world: World, crew: Crew) -> None:
    """I11: what runs is awaited, the rest is pending again with attempts 0, and the lease is gone."""
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    async def slow(ctx: Context) -> None:
        ran.append(ctx.delivery_id)
        started.set()
        await asyncio.to_thread(go.wait, 30)

    crew.handles("warehouse", slow)
    world.publish(10)
    with crew.running(concurrency=2) as worker:
        assert started.wait(30)
        worker.drain()
        until(lambda: worker.health().state == "draining", what="draining")
        go.set()
    rows = world.deliveries()
    assert {(row.status, row.attempts) for row in rows} == {("pending", 0)}
    assert 1 <= len(ran) <= 2, "two slots"
    assert len(world.history()) == len(ran), "what ran was awaited"
    assert len(rows) == 10 - len(ran)
    assert world.sql("select count(*) from todoku_worker") == [(0,)]


def test_I11_an_attempt_that_outlives_the_grace_counts(world: World, crew: Crew) -> None:
    """An attempt that had started is not given back: nobody knows what it did."""
    started = threading.Event()

    async def endless(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(3600)

    crew.handles("warehouse", endless)
    world.publish()
    with crew.running(drain_grace_sec=0.2):
        assert started.wait(30)
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.attempts) == ("failed", "INTERRUPTED", 1)


def test_I3_a_worker_whose_lease_ended_drops_everything_and_begins_a_new_one(world: World, crew: Crew) -> None:
    """I3: a lease that ended is never renewed; another id is taken, and the message still arrives."""
    started = threading.Event()
    workers: list[object] = []

    async def slow(ctx: Context) -> None:
        workers.append(ctx.claim.worker)
        if len(workers) == 1:
            started.set()
            await asyncio.sleep(3600)

    crew.handles("warehouse", slow)
    world.publish()
    with crew.running(lease_sec=4, reclaim_interval_sec=0.2) as worker:
        assert started.wait(30)
        first = worker.health().worker_id
        world.sql("delete from todoku_worker where id = ?", str(first))
        until(lambda: worker.health().worker_id != first, what="a new incarnation")
        until(lambda: len(world.history()) == 1, what="the delivery")
    assert len(set(workers)) == 2


@pytest.mark.parametrize("operation", ["claim", "settle", "release"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_H3_a_lost_reply_loses_nothing(world: World, crew: Crew, operation: str, side: str) -> None:
    """H3, H4: whatever was committed or not, everything arrives once, and no attempt is burnt."""
    crew.handles("warehouse")
    left = [3]

    def lose_thrice() -> None:
        if left[0]:
            left[0] -= 1
            lose()

    world.publish(30)
    with armed(f"{operation}.{side}_commit", lose_thrice), crew.running(concurrency=4):
        until(lambda: len(world.history()) == 30, what="everything")
    assert len(crew.seen) == 30
    assert {row.attempts for row in world.history()} == {1}


def test_H3_a_comparison_that_fails_is_made_again_soon(world: World, crew: Crew) -> None:
    """H3: an idle worker keeps nothing that it does not know of until its next renewal, whatever the database does."""
    crew.handles("warehouse")
    lost = {"claim": 1, "release": 1}

    def lose_once(operation: str) -> None:
        if lost[operation]:
            lost[operation] -= 1
            lose()

    with (
        armed("claim.after_commit", partial(lose_once, "claim")),
        armed("release.before_commit", partial(lose_once, "release")),
        crew.running(lease_sec=3600.0),
    ):
        world.publish(3)
        until(lambda: len(world.history()) == 3, what="everything")
    assert lost == {"claim": 0, "release": 0}
    assert {row.attempts for row in world.history()} == {1}


def test_the_guardrail_trips_and_recovers_by_itself(world: World, crew: Crew) -> None:
    """N failed looks at the database: not ready and no claiming; back by itself."""
    crew.handles("warehouse")
    down = threading.Event()
    down.set()

    def fail_while_down() -> None:
        if down.is_set():
            lose()

    with crew.running(lease_sec=1, guardrail_db_failures=2, poll_interval_sec=0.05) as worker:
        until(lambda: worker.health().database_ok, what="the first beat")
        with armed("renew.before_commit", fail_while_down), armed("register.before_commit", fail_while_down):
            until(lambda: worker.health().tripped, what="the guardrail")
            world.publish()
            assert crew.seen == []
            down.clear()
            until(lambda: len(world.history()) == 1, what="the recovery")
        assert not worker.health().tripped


def test_a_paused_queue_is_left_alone_and_what_was_claimed_of_it_is_given_back(world: World, crew: Crew) -> None:
    """H24: obeyed by running workers long before their lease is renewed, without burning attempts."""
    started, go = threading.Event(), threading.Event()

    async def slow(ctx: Context) -> None:
        started.set()
        await asyncio.to_thread(go.wait, 30)

    crew.handles("warehouse", slow)
    world.publish(20)
    with crew.running(concurrency=1, lease_sec=3600):
        assert started.wait(30)
        world.store.queues.pause("warehouse", SOMEBODY, paused=True)
        until(lambda: statuses(world).count("sending") == 1, what="the others given back")
        go.set()
        until(lambda: len(world.history()) == 1, what="the running one")
        world.store.queues.pause("warehouse", SOMEBODY, paused=False)
        until(lambda: len(world.history()) == 20, what="the rest")
    assert {row.attempts for row in world.history()} == {1}


def test_a_concurrency_limit_is_kept_by_several_workers_together(world: World, crew: Crew) -> None:
    """`todoku limit`: obeyed by running workers, from the first claim of each on, and used up."""
    lock, now, most = threading.Lock(), [0], [0]

    async def slow(ctx: Context) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        while most[0] < 3:  # noqa: ASYNC110 - two loops; what is allowed must not be left lying
            await asyncio.sleep(0.005)
        with lock:
            now[0] -= 1

    crew.handles("warehouse", slow)
    world.store.limits.set("warehouse", SOMEBODY, of="queue", concurrency=3, rate=None, lasts=None)
    with crew.running(concurrency=8) as one, crew.running(concurrency=8) as two:
        until(lambda: one.health().database_ok and two.health().database_ok, what="both")
        world.publish(100)
        until(lambda: len(world.history()) == 100, what="everything")
    assert most[0] == 3


def test_a_rate_limit_is_kept(world: World, crew: Crew) -> None:
    """20 a second: forty take at least a second, whatever the worker could do."""
    crew.handles("warehouse")
    world.store.limits.set("warehouse", SOMEBODY, of="destination", concurrency=None, rate=20.0, lasts=None)
    with crew.running(concurrency=8):
        world.publish(40)
        until(lambda: len(world.history()) == 40, what="everything")
    times = [row.updated_at.timestamp() for row in world.history()]
    assert max(times) - min(times) >= 0.9


class Shaky:
    """A destination that can be down, and can be asked."""

    name = "shaky"

    def __init__(self) -> None:
        self.down = True
        self.calls = 0

    async def send(self, batch: Sequence[Outgoing]) -> Sequence[Outcome] | None:
        self.calls += 1
        if self.down:
            raise ConnectionRefusedError("nobody there")
        return None


class Pingable(Shaky):
    name = "pingable"

    async def ping(self) -> None:
        if self.down:
            raise ConnectionRefusedError("nobody there")


def test_a_breaker_opens_for_all_workers_and_burns_no_attempts(world: World, crew: Crew) -> None:
    """H24: after some failures in a row the rest waits until the breaker closes, untouched."""
    shaky = Shaky()
    crew.sends(shaky, batch=1)
    world.publish(200, to=["shaky"])
    with crew.running(concurrency=2) as worker:
        until(lambda: "shaky" in worker.health().breakers, what="the breaker")
        assert shaky.calls <= THRESHOLD + 2
        until(lambda: "sending" not in statuses(world), what="everything given back")
    assert sum(row.attempts for row in world.deliveries()) == shaky.calls


def test_a_destination_whose_ping_fails_waits_without_burning_attempts(world: World, crew: Crew) -> None:
    """A ping that fails opens the breaker before anything is sent, and closes it when it answers."""
    pingable = Pingable()
    crew.sends(pingable, batch=1)
    with crew.running(concurrency=2) as worker:
        until(lambda: worker.health().pings == ("pingable",), what="the failing ping")
        until(lambda: "pingable" in worker.health().breakers, what="the breaker")
        world.publish(5, to=["pingable"])
        assert pingable.calls == 0
        pingable.down = False
        until(lambda: len(world.history()) == 5, what="everything")
        until(lambda: worker.health().pings == (), what="the all-clear")
    assert {row.attempts for row in world.history()} == {1}


def test_a_sleeping_worker_is_woken(world: World, crew: Crew) -> None:
    """H25, DESIGN §4 Wake-up: with a poll interval of a minute, a message still starts at once."""
    crew.handles("warehouse")
    with crew.running(poll_interval_sec=60):
        for number in range(1, 4):
            until(
                lambda: world.backend == "sqlite" or "idle" in {row.state for row in world.store.leases.workers()},
                what="sleep",
            )
            world.publish()
            until(lambda: len(crew.seen) == number, seconds=50, what="waking up")  # noqa: B023 - runs at once


def test_a_worker_that_is_not_enabled_claims_nothing(world: World, crew: Crew) -> None:
    """S0: OUTBOX_ENABLED=false: publish still stores, nothing is claimed."""
    crew.handles("warehouse")
    world.publish()
    with crew.running(enabled=False, poll_interval_sec=0.01) as worker:
        until(lambda: worker.health().database_ok, what="the first beat")
        assert statuses(world) == ["pending"]
    assert crew.seen == []


def test_a_part_that_breaks_ends_the_worker_instead_of_leaving_it_half_alive(world: World, crew: Crew) -> None:
    """No swallowed exception: `run` raises it, and what was held is freed."""

    class Broken(Telemetry):
        def claimed(self, claims: Sequence[Claimed], *, seconds: float) -> None:
            raise LookupError("broken")

    crew.handles("warehouse")
    world.publish(3)
    with pytest.raises(LookupError, match="broken"):
        crew.drain(telemetry=Broken())
    assert "sending" not in statuses(world)


def test_a_drain_without_a_database_is_an_error_and_not_a_wait(world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    with armed("register.before_commit", lose), pytest.raises(DatabaseUnavailable):
        crew.drain()


def test_a_drain_that_could_not_look_looks_again_before_it_says_that_nothing_is_due(world: World, crew: Crew) -> None:
    """I1: a claim that fails, here five times in a row, has not seen that there is nothing."""
    crew.handles("warehouse")
    left = [5]

    def lose_some() -> None:
        if left[0]:
            left[0] -= 1
            lose()

    world.publish(3)
    with armed("claim.before_commit", lose_some):
        assert crew.drain() == 3
    assert left == [0]
    assert world.deliveries() == []


def test_H13_what_the_ledger_cannot_tell_now_is_given_back_and_costs_no_slot(world: World, crew: Crew) -> None:
    """H13: a keyed delivery that may have been sent is looked up again just before; if that fails, nothing is sent."""
    tried: list[int] = []

    async def once(ctx: Context) -> None:
        tried.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry(after=0)

    crew.handles("warehouse", once)
    world.publish(8, idempotency_key=None)
    for number in range(8):
        world.publish(idempotency_key=f"k{number}")
    worker = crew.worker(concurrency=2)
    left, read = [5], worker._executor.store.claims.effects

    def flaky(claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
        if left[0]:
            left[0] -= 1
            lose()
        return read(claims)

    worker._executor.store.claims.effects = flaky  # type: ignore[method-assign]
    asyncio.run(worker.run(until_idle=True))
    assert left == [0]
    assert len(world.history()) == 16
    assert sorted(tried) == [1] * 16 + [2] * 16


def test_H8_a_loop_that_never_turns_loses_its_lease_and_says_so(world: World, crew: Crew) -> None:
    """H8, S2-6: the heartbeat does not renew for a loop dead for max_processing_sec; another runs what it held."""
    stuck, free, calls = threading.Event(), threading.Event(), []

    async def block(ctx: Context) -> None:
        calls.append(ctx.claim.worker)
        if len(calls) == 1:
            free.wait(60)

    crew.handles("warehouse", block)
    world.publish()
    with crew.running(lease_sec=1, max_processing_sec=1, on_stuck=stuck.set):
        assert stuck.wait(30)
        with crew.running(lease_sec=10, reclaim_interval_sec=0.1):
            until(lambda: len(world.history()) == 1, what="another worker")
        free.set()
    assert len(set(calls)) == 2


def test_H9_nothing_is_started_after_the_lease_can_have_ended(world: World, crew: Crew) -> None:
    """H9, I12: by the worker's own clock, whatever the database would say."""
    started: list[tuple[object, float]] = []
    first = threading.Event()

    async def note(ctx: Context) -> None:
        started.append((ctx.claim.worker, time.monotonic()))
        if len(started) == 1:
            first.set()
            await asyncio.sleep(2.0)  # longer than the lease, which nobody can renew meanwhile

    crew.handles("warehouse", note)
    world.publish(5)
    with (
        armed("renew.before_commit", lambda: lose() if first.is_set() and len(started) < 2 else None),
        crew.running(lease_sec=1, concurrency=1, reclaim_interval_sec=0.2),
    ):
        assert first.wait(30)
        owner = started[0][0]
        until(lambda: time.monotonic() > started[0][1] + 2.5, what="the end of the first attempt")
        assert [who for who, _ in started].count(owner) == 1
        started.append((None, 0.0))  # from here on the lease can be renewed
        until(lambda: len(world.history()) == 5, what="the rest, under a new lease")


def test_H10_a_claim_under_way_when_draining_begins_is_awaited_and_given_back(world: World, crew: Crew) -> None:
    """H10, I11: it commits after draining began, and nothing of it is left behind."""
    claiming, go = threading.Event(), threading.Event()

    def hold() -> None:
        claiming.set()
        assert go.wait(30)

    crew.handles("warehouse")
    world.publish(3)
    with armed("claim.before_commit", hold), crew.running() as worker:
        assert claiming.wait(30)
        worker.drain()
        go.set()
        until(lambda: worker.health().state == "stopped", what="the end")
    assert crew.seen == []
    assert [(row.status, row.attempts) for row in world.deliveries()] == [("pending", 0)] * 3


def test_H13_the_effect_entry_is_read_again_just_before_a_send(world: World, crew: Crew) -> None:
    """H13, I7: a zombie's success recorded after the claim, before the send: nothing is sent a second time."""
    world.publish(idempotency_key="k")
    zombie = world.claim(world.worker(lease=30))
    world.advance(31)
    world.store.leases.reclaim()
    crew.handles("warehouse")

    class Meanwhile(Telemetry):
        """Between the new owner's claim and its attempt the zombie records its success."""

        def claimed(self, claims: Sequence[Claimed], *, seconds: float) -> None:
            assert world.settle(zombie).lost == tuple(zombie)

    assert crew.drain(telemetry=Meanwhile()) == 1
    assert crew.seen == []
    assert [row.status for row in world.history()] == ["succeeded"]


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_a_slot_that_breaks_ends_the_worker_too(world: World, crew: Crew, run: Any) -> None:
    """What it held would hang for ever, and nobody would know: `run` raises instead."""

    class Broken(Telemetry):
        def begin(self, claim: Claimed, *, send: bool) -> Any:
            raise LookupError("broken")

    crew.handles("warehouse", lambda ctx: None, run=run)
    world.publish(2)
    with pytest.raises(LookupError, match="broken"):
        crew.drain(telemetry=Broken())
    assert "sending" not in statuses(world)
