"""How a worker claims: nothing that is due waits beside it, nothing slow waits in its memory, and never more than asked."""

from __future__ import annotations

import time

import pytest

from tests.support.crew import Crew, until
from tests.support.world import World
from todoku.engine.context import Context


@pytest.mark.slow
def test_MEND_2_a_new_type_does_not_wait_after_somebody_held_the_write_lock(world: World, crew: Crew) -> None:
    """MEND-2: the lock was held for 3 s, so the worker's scan took 3 s, so the next one came 57 s later."""
    if world.backend != "sqlite":
        pytest.skip("PostgreSQL has no such lock")
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
