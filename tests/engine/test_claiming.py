"""How a worker claims: nothing that is due waits beside it, and it never takes more than it was asked to."""

from __future__ import annotations

import time

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.limit import Limit
from todoku.engine.context import Context


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"])  # PostgreSQL has no such lock
def test_MEND_2_a_new_type_does_not_wait_after_another_connection_held_the_write_lock(world: World, crew: Crew) -> None:
    """MEND-2: the lock was held for 3 s, so the worker's scan took 3 s, so the next one came 57 s later."""
    ran: list[str] = []

    async def note(ctx: Context) -> None:
        ran.append(ctx.claim.destination)

    crew.handles("warehouse", note)
    crew.handles("new", note)
    with crew.running(notify=False):
        world.publish()
        until(lambda: ran == ["warehouse"], what="work")
        time.sleep(1.5)  # by now it polls every half second, and each poll is a full scan: that is what shall wait
        holder = world.connect()
        try:
            holder.execute("begin immediate")
            time.sleep(3)  # the fault itself; the idle worker polls, and waits for the lock
            holder.rollback()
        finally:
            holder.close()
        world.publish(to=("new",))
        until(lambda: "new" in ran, seconds=30, what="a job of a new type")


KINDS = ("plain", "laned", "gated", "counted")


def publish_one_of_each(world: World, number: int) -> None:
    """So many deliveries of each kind that is claimed in its own way."""
    world.publish(number, to=("plain",))
    for place in range(number):
        world.publish(to=("laned",), ordered=True, key=str(place % 2))
        world.publish(to=("gated",), per_key=Limit(concurrency=2), key=str(place % 2))
    world.publish(number, to=("counted",))
    world.store.limits.set("counted", SOMEBODY, of="queue", concurrency=3, rate=None)


def crash(world: World) -> None:
    """A worker takes one delivery of each kind, or more, and dies."""
    worker = world.worker()
    claims = world.claim(worker, limit=4) + world.claim_lanes(worker, limit=4)
    claims += world.claim_gates(worker, Limit(concurrency=2), limit=4)
    assert len(claims) >= 8
    world.store.leases.end(worker, lost=True)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_MEND_5_a_limited_worker_settles_no_more_than_its_limit(
    world: World, crew: Crew, crashed: bool, limit: int
) -> None:
    """MEND-5: `--once --batch N` settled everything that a crash had left behind, N or not."""
    crew.handles("plain", lambda _ctx: None, run="thread")  # in another pool than the others
    crew.handles("gated", per_key=Limit(concurrency=2))
    crew.handles("laned")
    crew.handles("counted")
    publish_one_of_each(world, 6)
    if crashed:
        crash(world)
    left = 6 * len(KINDS)
    while left:
        assert crew.drain(limit=limit) == min(limit, left)
        left -= min(limit, left)
        assert len(world.history()) == 6 * len(KINDS) - left
    assert crew.drain(limit=limit) == 0
