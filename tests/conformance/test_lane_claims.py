"""How many lanes a claim takes, and what settling a lane leaves behind when its end and a publisher meet (I10)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.world import World, failed
from todoku.core.decision import SUCCEEDED
from todoku.core.identity import lane_id
from todoku.engine.claim import ClaimCursor
from todoku.store.join import run

WAREHOUSE = "warehouse"


def order(world: World, keys: int, each: int) -> None:
    """Publish `each` messages of each of so many keys."""
    drafts = [draft for key in range(keys) for draft in world.drafts(each, ordered=True, key=f"key {key}")]
    world.store.run(world.steps(drafts))


def taken(world: World, claims: ClaimCursor) -> tuple[int, int]:
    """Claim once and settle all of it; returns the lanes and the rows."""
    found = claims.claim_lanes(lanes=4, limit=40)
    assert world.settle(found).lost == ()
    return len({claim.lane for claim in found}), len(found)


def test_more_lanes_are_claimed_at_once_while_they_are_short(world: World) -> None:
    """§4 Order: a claim of lanes with one row each costs as much as a full one, so it takes up to half of its limit."""
    order(world, keys=80, each=1)
    claims = ClaimCursor(world.store, world.worker(), [WAREHOUSE], monotonic=lambda: 0.0)
    assert [taken(world, claims) for _ in range(4)] == [(4, 4), (8, 8), (16, 16), (20, 20)]
    assert world.sql("select count(*) from todoku_lane") == [(32,)]


def test_long_lanes_are_claimed_a_few_at_once_again(world: World) -> None:
    """§4 Order: many rows of few lanes are cheaper than a few of many."""
    order(world, keys=28, each=1)
    claims = ClaimCursor(world.store, world.worker(), [WAREHOUSE], monotonic=lambda: 0.0)
    assert [taken(world, claims) for _ in range(3)] == [(4, 4), (8, 8), (16, 16)]
    order(world, keys=40, each=50)
    assert [taken(world, claims)[0] for _ in range(4)] == [20, 16, 8, 4]


def test_a_limit_below_the_lanes_asked_for_still_holds(world: World) -> None:
    """What a worker claims it must be able to run."""
    order(world, keys=9, each=2)
    claims = ClaimCursor(world.store, world.worker(), [WAREHOUSE], monotonic=lambda: 0.0)
    assert len(claims.claim_lanes(lanes=50, limit=3)) == 3


def test_some_lanes_end_others_go_on_and_others_stay_with_their_worker(world: World) -> None:
    """I10: one settle drops, releases and keeps, each by what is left of the lane."""
    for key, number in (("ends", 1), ("goes on", 3), ("fails", 2)):
        world.publish(number, ordered=True, key=key)
    one, other = world.worker(), world.worker()
    claims = world.claim_lanes(one, lanes=3, limit=6)
    ends, (first, second), (head, follower) = (
        [claim for claim in claims if claim.key == key] for key in ("ends", "goes on", "fails")
    )
    world.store.claims.settle(
        [(ends[0], SUCCEEDED), (first, SUCCEEDED), (second, SUCCEEDED), (head, failed(delay=60.0))]
    )
    owner = dict(world.sql("select id, worker_id is not null from todoku_lane"))
    assert owner == {lane_id(WAREHOUSE, "goes on"): False, lane_id(WAREHOUSE, "fails"): True}
    assert [claim.key for claim in world.claim_lanes(other)] == ["goes on"]
    world.store.claims.release([follower])
    assert world.claim_lanes(other) == []
    assert world.sql("select count(*) from todoku_lane where worker_id is not null") == [(1,)]


@pytest.fixture
def pg(postgres_url: str) -> Iterator[World]:
    """A world on PostgreSQL, where a publisher's transaction stays open while a worker settles."""
    world = World("postgres", postgres_url)
    yield world
    world.close()


@pytest.mark.postgres
def test_of_two_lanes_that_end_only_that_without_a_publisher_is_dropped(pg: World) -> None:
    """I10: the other is released and goes on with what the publisher commits, in its old order."""
    for key in ("a", "b"):
        pg.publish(1, ordered=True, key=key)
    worker = pg.worker()
    claims = pg.claim_lanes(worker)
    with psycopg.connect(pg.url) as connection:
        run(connection, "postgresql", pg.steps(pg.drafts(1, ordered=True, key="b")))
        assert pg.settle(claims).lost == ()
        rows = pg.sql("select id, worker_id, failures, parked from todoku_lane")
        assert rows == [(lane_id(WAREHOUSE, "b"), None, 0, False)]
    assert pg.sql("update todoku_lane set ready_at = todoku_now() returning id") == [(lane_id(WAREHOUSE, "b"),)]
    assert [claim.key for claim in pg.claim_lanes(worker)] == ["b"]
