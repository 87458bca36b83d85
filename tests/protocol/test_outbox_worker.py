"""The test plan of source document 000, §11: W-101 … W-105, through the real worker on both databases."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Retry
from todoku.core.status import Status
from todoku.engine.context import Context
from todoku.store.claims import SettleReport
from todoku.store.deliveries import Filter


def test_W_101_pending_becomes_sending_becomes_succeeded(world: World, crew: Crew) -> None:
    """W-101: the way of a message that arrives."""
    statuses: list[str] = []

    async def look(ctx: Context) -> None:
        statuses.append(world.deliveries()[0].status)

    crew.handles("warehouse", look)
    world.publish()
    assert [row.status for row in world.deliveries()] == ["pending"]
    assert crew.drain() == 1
    assert statuses == ["sending"]
    assert world.deliveries() == []
    assert [(row.status, row.attempts) for row in world.history()] == [("succeeded", 1)]


def test_W_102_a_timeout_is_failed_with_next_run_at_ahead_and_the_second_attempt_succeeds(
    world: World, crew: Crew
) -> None:
    """W-102: it runs into its time limit; failed, not claimable before its back-off is over, claimable then."""

    async def slow_once(ctx: Context) -> None:
        if ctx.attempt == 1:
            await asyncio.Event().wait()  # the broker does not answer

    crew.handles("warehouse", slow_once, timeout=0.2)
    world.publish()
    assert crew.drain() == 1
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.attempts) == ("failed", "TIMEOUT", 1)
    wait = row.next_run_at.timestamp() - row.updated_at.timestamp()
    assert 5.0 <= wait <= 5.51, "the table's first step, and jitter that never makes it earlier"
    assert crew.drain() == 0
    world.advance(5.51)
    assert crew.drain() == 1
    assert [(done.status, done.attempts) for done in world.history()] == [("succeeded", 2)]


def test_W_103_after_a_worker_died_another_takes_over_when_its_lease_has_ended(world: World, crew: Crew) -> None:
    """W-103, S2-5, S2-7: a running worker finds the dead one's claim once its lease is over, and runs it again."""
    crew.handles("warehouse")
    world.publish()
    dead = world.worker(lease=30)
    (claim,) = world.claim(dead)
    assert world.store.leases.reclaim().freed == 0, "the lease lasts"
    assert crew.drain() == 0
    world.advance(31)
    with crew.running(reclaim_interval_sec=0.05):
        until(world.history, what="the attempt after the lease")
    (done,) = world.history()
    assert (done.status, done.attempts) == ("succeeded", 1), "the attempt of the dead worker is given back"
    (again,) = [ctx.claim for ctx in crew.seen]
    assert (again.id, again.lost) == (claim.id, 1)
    assert again.worker != claim.worker
    assert again.epoch > claim.epoch
    assert world.sql("select reason from todoku_attempt") == [("WORKER_LOST",)]


def test_W_104_too_many_attempts_are_aborted_and_a_replay_may_fail_again_and_still_succeed(
    world: World, crew: Crew
) -> None:
    """W-104: max_attempts failures end it; replayed by hand it has max_attempts − 1 failures left, and succeeds."""
    attempts: list[int] = []

    async def down(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) < 6:
            raise Retry(after=0, reason="BROKER_DOWN")

    crew.handles("warehouse", down)
    world.publish(max_attempts=3)
    crew.drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.attempts) == ("aborted", "BROKER_DOWN", 3)
    assert crew.drain() == 0, "nothing leaves `aborted` by itself (I9)"
    assert world.store.acts.replay(Filter(ids=(row.id,)), SOMEBODY).changed == (row.id,)
    crew.drain()
    assert attempts == [1, 2, 3, 1, 2, 3]
    (done,) = world.history()
    assert (done.status, done.replay_count) == ("succeeded", 1)


def test_W_105_a_key_the_ledger_knows_as_succeeded_settles_the_delivery_without_sending(
    world: World, crew: Crew
) -> None:
    """W-105, I5: the success was recorded, the row was left behind; it is settled, and nothing is sent again."""
    crew.handles("warehouse")
    world.publish(idempotency_key="order 7")
    # The first owner sent it, recorded the success, and was cut off before its row was settled.
    (claim,) = world.claim(world.worker(lease=30))
    zombie = _settled_as_a_zombie(world, claim)
    assert zombie.lost == (claim,)
    assert crew.drain() == 1
    assert crew.seen == []
    assert [row.status for row in world.history()] == ["succeeded"]


def _settled_as_a_zombie(world: World, claim: Claimed) -> SettleReport:
    world.advance(31)
    world.store.leases.reclaim()
    return world.settle([claim])


def test_W_105_another_body_under_the_same_key_is_a_conflict_and_is_not_sent(world: World, crew: Crew) -> None:
    """I5: the ledger is left alone, the delivery is a dead letter that says why."""
    crew.handles("warehouse")
    world.publish(topic="order.created", idempotency_key="order 7", payload=lambda _: {"amount": 1})
    assert crew.drain() == 1
    world.publish(topic="order.changed", idempotency_key="order 7", payload=lambda _: {"amount": 2})
    crew.drain()
    assert len(crew.seen) == 1
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("aborted", "IDEMPOTENCY_CONFLICT")


def test_a_deterministic_failure_is_a_dead_letter_at_once(world: World, crew: Crew) -> None:
    """002 v3: what cannot succeed is not tried again, and says why."""

    async def refuse(ctx: Context) -> None:
        raise Abort("MAILBOX_UNKNOWN", "no such mailbox")

    crew.handles("warehouse", refuse)
    world.publish()
    crew.drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.error, row.attempts) == ("aborted", "MAILBOX_UNKNOWN", "no such mailbox", 1)


@pytest.mark.parametrize("status", [Status.SUCCEEDED])
def test_a_running_worker_finds_new_work_by_itself(world: World, crew: Crew, status: Status) -> None:
    """I1: polling is always on."""
    crew.handles("warehouse")
    with crew.running(notify=False, poll_interval_sec=0.05):
        world.publish(3)
        until(lambda: len(world.history()) == 3, what="three deliveries")
    assert {row.status for row in world.history()} == {status.value}
