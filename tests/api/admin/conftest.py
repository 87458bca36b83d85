"""A server with something to look at."""

from __future__ import annotations

import pytest

from tests.support.world import World, aborted


@pytest.fixture
def dead(world: World) -> list[int]:
    """Three dead letters of two reasons, and one delivery that waits."""
    world.publish(3, topic="order.created")
    worker = world.worker()
    claims = world.claim(worker)
    world.settle(claims[:2], aborted("REFUSED"))
    world.settle(claims[2:], aborted("BAD_PAYLOAD"))
    world.publish(1, topic="order.waiting")
    return [claim.id for claim in claims]
