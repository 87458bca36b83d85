"""What tests of claims by list have in common."""

from __future__ import annotations

from tests.support.world import World
from todoku.store.deliveries import Filter

EVERYTHING = Filter()
CHANGING = ("epoch", "worker", "claim_list")
"""What two claims of one delivery do not have in common."""


def states(world: World) -> list[tuple[str, int, int, int]]:
    """Status, attempts, losses and epoch of each delivery."""
    return [(row.status, row.attempts, row.lost, row.epoch) for row in world.deliveries()]


def lists(world: World) -> int:
    """How many lists there are."""
    return int(world.sql("select count(*) from todoku_claim_list")[0][0])


def register_old_worker(world: World) -> None:
    """Register a worker of a release that knows no lists."""
    world.sql("insert into todoku_worker (id, name, started_at, expires_at)"
              " values (gen_random_uuid(), 'old', now(), now() + interval '1 hour') returning id")  # fmt: skip
