"""Lanes whose deliveries are claimed by list on PostgreSQL: their order and their owner are those of any lane (I10)."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from tests.postgres.listed import CHANGING, EVERYTHING, lists, register_old_worker, states
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import SUCCEEDED
from todoku.core.errors import DatabaseUnavailable
from todoku.core.message import Claimed
from todoku.store import failpoint
from todoku.store.claim_lists import Listing
from todoku.store.store import Store

pytestmark = pytest.mark.postgres


def order(world: World, number: int, key: str = "a", **options: object) -> None:
    """Publish messages to the lane of `key`; the payload counts."""
    world.publish(number, ordered=True, key=key, payload=lambda place: place, **options)


def claim(world: World, worker: UUID | None = None, *, limit: int = 100, fewest: int = 1) -> list[Claimed]:
    return world.claim_lanes(worker or world.worker(), limit=limit, listing=Listing(("warehouse",), fewest))


def numbers(claims: Sequence[Claimed]) -> list[int]:
    return [json.loads(each.payload or "") for each in claims]


def owners(world: World) -> list[UUID | None]:
    return [owner for (owner,) in world.sql("select worker_id from todoku_lane order by id")]


def test_I10_a_lane_claimed_by_list_leaves_its_rows_alone_and_is_dropped_when_it_is_empty(world: World) -> None:
    order(world, 3)
    worker = world.worker()
    claims = claim(world, worker)
    assert [(one.epoch, one.attempt, one.claim_list is None) for one in claims] == [(0, 1, False)] * 3
    assert numbers(claims) == [0, 1, 2]
    assert states(world) == [("pending", 0, 0, 0)] * 3
    assert owners(world) == [worker]

    assert world.settle(claims).lost == ()
    assert len(world.history()) == 3
    assert owners(world) == []


def test_I10_a_lane_stays_its_workers_until_all_that_is_listed_has_ended(world: World) -> None:
    order(world, 4)
    worker = world.worker()
    first, second, third = claim(world, worker, limit=3)
    world.settle([first])
    assert owners(world) == [worker]
    assert claim(world) == []
    world.settle([second, third])
    assert owners(world) == [None]
    assert numbers(claim(world)) == [3]


def test_I10_behind_a_head_that_failed_a_listed_follower_keeps_the_lane(world: World) -> None:
    order(world, 2)
    worker = world.worker()
    head, follower = claim(world, worker)
    world.settle([head], failed())
    assert owners(world) == [worker]
    assert claim(world) == []
    assert world.store.claims.release([follower]) == ()
    assert owners(world) == [None]
    (again,) = claim(world, worker)  # the lane failed: one row only
    assert (again.id, again.attempt, again.epoch, again.claim_list) == (head.id, 2, 2, None)


def test_I10_a_head_that_was_written_out_keeps_the_lane(world: World) -> None:
    order(world, 3)
    worker = world.worker()
    claims = claim(world, worker)
    world.advance(2)
    assert {(held.id, held.epoch) for held in world.store.leases.owned(worker)} == {(one.id, 0) for one in claims}
    world.settle(claims[:1])
    assert owners(world) == [worker]
    assert world.settle(claims[1:]).lost == ()
    assert owners(world) == []


def test_I10_what_an_operator_has_locked_blocks_its_lane_and_is_not_waited_for(world: World) -> None:
    order(world, 3)
    with psycopg.connect(world.url) as somebody:
        somebody.execute("select from todoku_delivery where id = (select max(id) - 1 from todoku_delivery) for update")
        assert numbers(claim(world)) == [0]


def test_I3_what_a_dead_worker_has_listed_and_reclaim_could_not_free_blocks_its_lane(world: World) -> None:
    """The row was locked when the lease ended, so its list stayed and its lane was freed."""
    order(world, 2)
    claims = claim(world, world.worker(lease=10))
    with psycopg.connect(world.url) as somebody:
        somebody.execute("select from todoku_delivery order by id limit 1 for update")
        world.advance(11)
        assert world.store.leases.reclaim().freed == 1
    assert owners(world) == [None]
    assert lists(world) == 1
    for fewest in (1, 1000):
        assert claim(world, fewest=fewest) == []
    assert world.store.leases.reclaim().freed == 1
    (again,) = claim(world)
    assert (again.id, again.lost, again.epoch) == (claims[0].id, 1, 2)
    assert world.settle(claims).lost == tuple(claims)
    world.settle([again])


def test_I1_a_dead_workers_lane_is_freed_its_failure_counted_and_its_zombie_fenced(world: World) -> None:
    order(world, 3)
    claims = claim(world, world.worker(lease=10))
    world.advance(11)
    assert world.store.leases.reclaim().freed == 3
    assert lists(world) == 0
    assert world.sql("select worker_id, failures from todoku_lane") == [(None, 1)]
    assert states(world) == [("pending", 0, 1, 1)] * 3
    assert numbers(claim(world)) == [0]
    assert world.settle(claims).lost == tuple(claims)


def test_I11_the_last_act_of_a_worker_frees_its_lanes_without_a_loss(world: World) -> None:
    order(world, 2)
    worker = world.worker()
    claim(world, worker)
    assert world.store.leases.end(worker, lost=False).freed == 2
    assert states(world) == [("pending", 0, 0, 1)] * 2
    assert numbers(claim(world)) == [0, 1]


def test_a_listed_head_that_is_refused_parks_its_lane(world: World) -> None:
    order(world, 2)
    worker = world.worker()
    head, follower = claim(world, worker)
    world.settle([head], aborted())
    world.store.claims.release([follower])
    assert world.sql("select worker_id, parked from todoku_lane") == [(None, True)]
    assert claim(world) == []
    assert world.store.acts.replay(EVERYTHING, SOMEBODY).changed == (head.id,)
    assert numbers(claim(world)) == [0, 1]


def test_H22_cancelling_a_listed_row_of_a_lane_asks_its_worker(world: World) -> None:
    order(world, 2)
    worker = world.worker()
    head, follower = claim(world, worker)
    assert world.store.acts.cancel(EVERYTHING, SOMEBODY).changed == (head.id, follower.id)
    assert world.settle([head]).lost == ()
    assert world.settle([follower], failed()).lost == ()
    assert [(row.status, row.reason) for row in world.deliveries()] == [("aborted", "CANCELLED")]
    assert owners(world) == []


def test_H3_a_claim_of_lanes_by_list_whose_reply_was_lost_is_found_and_released(world: World) -> None:
    order(world, 2)
    worker = world.worker()

    def lose() -> None:
        raise DatabaseUnavailable("the reply was lost")

    with failpoint.armed("claim_lanes.after_commit", lose), pytest.raises(DatabaseUnavailable):
        claim(world, worker)
    assert world.store.claims.release(world.store.leases.owned(worker, fresh=True)) == ()
    assert owners(world) == [None]
    assert numbers(claim(world)) == [0, 1]


def test_a_claim_of_lanes_by_list_says_what_one_by_row_says(world: World) -> None:
    """In one claim: rows that can be listed, rows that cannot, and lanes of destinations that are not listed."""
    order(world, 2)
    order(world, 1, expires=3600)
    order(world, 2, key="b", priority=3, headers={"a": "b"}, max_attempts=3, queue="other")
    order(world, 2, key="c", to=("kitchen",))
    told = []
    for fewest in (1, 1000):
        worker = world.worker()
        claims = claim(world, worker, fewest=fewest)
        listed = [one.claim_list is not None for one in claims]
        assert sum(listed) == (4 if fewest == 1 else 0)
        told.append([{name: getattr(one, name) for name in Claimed.__struct_fields__ if name not in CHANGING}
                     for one in claims])  # fmt: skip
        world.sql("delete from todoku_claim_list")
        world.sql("update todoku_lane set worker_id = null")
        world.sql("update todoku_delivery set status = 'pending', worker_id = null, epoch = 0, attempts = 0")
    assert told[0] == told[1]
    assert len(told[0]) == 7


def test_a_worker_that_knows_no_lists_keeps_everybody_from_listing_lanes(world: World) -> None:
    order(world, 2)
    register_old_worker(world)
    assert [(one.epoch, one.claim_list) for one in claim(world)] == [(1, None)] * 2


def test_verify_finds_a_listed_delivery_whose_lane_is_not_its_workers(world: World) -> None:
    """I3, I10"""
    order(world, 2)
    worker = world.worker()
    claims = claim(world, worker)
    world.sql("update todoku_lane set worker_id = ? returning id", world.worker())
    broken = world.store.broken(history_ttl=86400.0, ledger_ttl=86400.0)
    assert broken == {"lane_owner": tuple(f"delivery {one.id}" for one in claims)}
    world.sql("update todoku_lane set worker_id = ? returning id", worker)
    world.settle(claims)


class Runs:
    """What threads have of each key, and what they have run of it."""

    def __init__(self) -> None:
        self.ran: dict[str, list[int]] = defaultdict(list)
        self._held: Counter[str] = Counter()
        self._owner: dict[str, UUID] = {}
        self._lock = threading.Lock()

    def begin(self, claims: Sequence[Claimed]) -> None:
        """A key that somebody has is nobody else's."""
        with self._lock:
            for one in claims:
                assert self._owner.setdefault(str(one.key), one.worker) == one.worker
                self._held[str(one.key)] += 1

    def end(self, store: Store, claims: Sequence[Claimed], *, succeeded: bool) -> None:
        """Settles or gives back. From the commit on another worker may have the key, so it is given up before."""
        with self._lock:
            for one in claims:
                key = str(one.key)
                self._held[key] -= 1
                if not self._held[key]:
                    del self._owner[key]
                if succeeded:
                    self.ran[key].append(json.loads(one.payload or ""))
        ended = [(one, SUCCEEDED) for one in claims]
        assert (store.claims.settle(ended).lost if succeeded else store.claims.release(claims)) == ()


def test_I10_workers_that_list_lanes_at_once_share_no_key_and_keep_its_order(world: World) -> None:
    """Threads claim by list and by row, settle in parts, write out and give back, until nothing is left."""
    for place in range(40):
        order(world, 25, key=str(place))
    runs = Runs()

    def work(turn: int) -> None:
        store, worker = world.another_store(), world.worker()
        listing = Listing(("warehouse",), 1000 if turn == 0 else 1)
        until = time.monotonic() + 15
        while places := store.claims.waiting(None).lanes:
            assert time.monotonic() < until, "nothing goes on"
            claims = store.claims.take_lanes(worker, places, lanes=5, limit=30, listing=listing)
            runs.begin(claims)
            turn += 1
            if turn % 3 == 0:
                store.leases.owned(worker, fresh=True)
            if turn % 4 == 0 and claims:
                runs.end(store, [claims.pop()], succeeded=False)
            middle = len(claims) // 2
            runs.end(store, claims[:middle], succeeded=True)
            runs.end(store, claims[middle:], succeeded=True)

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(work, turn) for turn in range(3)]:
            done.result()
    assert dict(runs.ran) == {str(place): list(range(25)) for place in range(40)}
