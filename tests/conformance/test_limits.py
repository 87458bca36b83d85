"""Limits that people set at run time: read every second or so, and kept exactly by every claim that counts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from tests.support.world import SOMEBODY, World
from todoku.core.decision import SUCCEEDED
from todoku.store.audit import Signed
from todoku.store.database import Slice
from todoku.store.limits import Counted, Limits, Restriction

QUIET = Limits((), (), ())


def unlimited(name: str, **what: object) -> Restriction:
    """A limit that says only `what`."""
    fields: dict[str, object] = {
        "name": name, "paused": False, "concurrency": None, "rate": None, "open_until": 0.0, "failures": 0,
    }  # fmt: skip
    return Restriction(**(fields | what))  # type: ignore[arg-type]


def audited(world: World) -> list[tuple[str, ...]]:
    """Every act of a person, in order."""
    return world.sql("select by, action, target, why from todoku_audit order by id")


def test_where_nobody_said_anything_there_is_nothing_to_read(world: World) -> None:
    world.publish(3)
    world.store.destinations.announce(["warehouse", "mail"])
    assert world.store.limits.read() == QUIET


def test_a_limit_is_read_as_it_was_set_and_is_audited(world: World) -> None:
    world.store.limits.set("mail", Signed("ana", "the provider complains"), of="queue", concurrency=3, rate=2.5)
    world.store.limits.set("http", SOMEBODY, of="destination", concurrency=None, rate=0.1, lasts=1800)
    limits = world.store.limits.read()
    assert limits.queues == (unlimited("mail", concurrency=3, rate=2.5),)
    assert limits.destinations == (unlimited("http", rate=0.1),)
    assert audited(world) == [
        ("ana", "limit to 3 at once and 2.5/s", "queue:mail", "the provider complains"),
        ("somebody", "limit to 0.1/s for 1800 s", "destination:http", "a test"),
    ]


def test_a_limit_states_all_of_it_and_none_takes_it_away(world: World) -> None:
    """The second limit of a name replaces the first; a pause beside it stays."""
    world.store.queues.pause("mail", SOMEBODY, paused=True)
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=3, rate=2.0, lasts=5)
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=None, rate=1.0)
    world.advance(10)
    assert world.store.limits.read().queues == (unlimited("mail", paused=True, rate=1.0),)
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=None, rate=None)
    assert world.store.limits.read().queues == (unlimited("mail", paused=True),)
    world.store.queues.pause("mail", SOMEBODY, paused=False)
    assert world.store.limits.read() == QUIET
    assert [row[1] for row in audited(world)][-2:] == ["limit off", "resume"]


@pytest.mark.parametrize("of", ["queue", "destination"])
def test_a_limit_for_some_time_ends_by_itself_by_the_databases_clock(world: World, of: str) -> None:
    """I12."""
    world.store.limits.set("mail", SOMEBODY, of=of, concurrency=1, rate=1.0, lasts=30)  # type: ignore[arg-type]
    world.advance(25)
    assert world.store.limits.read() != QUIET
    world.advance(10)
    assert world.store.limits.read() == QUIET


def test_a_pause_outlives_the_limit_beside_it(world: World) -> None:
    world.store.queues.pause("mail", SOMEBODY, paused=True)
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=1, rate=None, lasts=5)
    world.advance(10)
    assert world.store.limits.read().queues == (unlimited("mail", paused=True),)


def test_a_limit_touches_neither_the_breaker_nor_the_policy_of_its_destination(world: World) -> None:
    world.store.limits.set_breaker("http", open_for=60, failures=5)
    world.store.destinations.set_on_abort("http", skip=True)
    world.store.limits.set("http", SOMEBODY, of="destination", concurrency=1, rate=None)
    (http,) = world.store.limits.read().destinations
    assert (http.concurrency, http.failures) == (1, 5)
    assert 0 < http.open_until - time.time() <= 61
    world.advance(120)
    assert world.store.limits.read().destinations == (unlimited("http", concurrency=1, failures=5),)
    assert world.sql("select on_abort from todoku_destination") == [("skip",)]


def test_a_limit_announces_no_destination(world: World) -> None:
    """UNKNOWN_DESTINATION: a person's limit is no worker that knows the destination."""
    world.publish()
    world.store.limits.set("warehouse", SOMEBODY, of="destination", concurrency=1, rate=None)
    world.advance(700)
    assert world.store.retention.expire(unknown_after=600) == (0, 1)


def test_the_live_leases_are_read_with_them_sorted(world: World) -> None:
    long = [world.worker(lease=60) for _ in range(5)]
    world.worker(lease=5)
    world.advance(10)
    alive = world.store.limits.read().workers
    assert sorted(alive, key=str) == list(alive)
    assert set(alive) == set(long)
    world.store.leases.end(long[0], lost=False)
    assert set(world.store.limits.read().workers) == set(long[1:])


def test_workers_tells_of_each_lease_and_what_it_holds(world: World) -> None:
    world.publish(5)
    busy, idle = world.worker(lease=60, name="busy"), world.worker(lease=5, name="idle")
    world.claim(busy, limit=3)
    world.store.leases.set_state(busy, "draining")
    world.advance(10)
    rows = {row.name: row for row in world.store.leases.workers()}
    assert {name: (row.id, row.state, row.held) for name, row in rows.items()} == {
        "busy": (busy, "draining", 3),
        "idle": (idle, "running", 0),
    }
    assert all(isinstance(row.id, UUID) and row.started_at < row.expires_at for row in rows.values())
    assert rows["idle"].expires_at.timestamp() < world.store.ping() < rows["busy"].expires_at.timestamp()


# ---------------------------------------------------------------------------------------------- counting

MAIL = Counted(queues=frozenset({"mail"}))


def limited(world: World, concurrency: int | None = 3, rate: float | None = None) -> None:
    """The queue `mail` has a limit."""
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=concurrency, rate=rate)


def test_a_claim_takes_what_the_limit_leaves_and_settling_makes_room(world: World) -> None:
    limited(world)
    world.publish(9, to=("mail",))
    one, other = world.worker(), world.worker()
    first = world.claim(one, limit=2, counted=MAIL)
    second = world.claim(other, counted=MAIL)
    assert (len(first), len(second)) == (2, 1)
    assert world.claim(one, counted=MAIL) == []
    world.settle(first)
    world.store.claims.release(second)
    assert len(world.claim(other, counted=MAIL)) == 3


def test_the_slices_of_one_queue_share_what_is_left_larger_priorities_first(world: World) -> None:
    limited(world, concurrency=5)
    for priority in (0, 7, 3):
        world.publish(2, to=("mail",), priority=priority)
        world.publish(2, to=("post",), queue="mail", priority=priority)
    assert [claim.priority for claim in world.claim(world.worker(), counted=MAIL)] == [7, 7, 7, 7, 3]


def test_what_is_at_its_limit_is_skipped_and_the_rest_is_claimed(world: World) -> None:
    """A million rows behind a limit must not keep one row elsewhere."""
    limited(world, concurrency=1)
    world.publish(5, to=("mail",), priority=9)
    world.publish(5, to=("other",))
    claims = world.claim(world.worker(), counted=MAIL)
    assert Counter(claim.queue for claim in claims) == {"mail": 1, "other": 5}


def test_a_destination_has_a_limit_over_all_its_queues(world: World) -> None:
    world.store.limits.set("mail", SOMEBODY, of="destination", concurrency=3, rate=None)
    for queue in ("a", "b"):
        world.publish(4, to=("mail",), queue=queue)
    counted = Counted(destinations=frozenset({"mail"}))
    assert len(world.claim(world.worker(), counted=counted)) == 3


def test_queue_and_destination_are_both_kept(world: World) -> None:
    limited(world, concurrency=4)
    world.store.limits.set("post", SOMEBODY, of="destination", concurrency=1, rate=None)
    world.publish(2, to=("mail",))
    world.publish(4, to=("post",), queue="mail")
    counted = Counted(queues=frozenset({"mail"}), destinations=frozenset({"post"}))
    worker = world.worker()
    assert Counter(claim.destination for claim in world.claim(worker, counted=counted)) == {"mail": 2, "post": 1}
    world.publish(4, to=("mail",))
    assert Counter(claim.destination for claim in world.claim(worker, counted=counted)) == {"mail": 1}


def test_a_worker_takes_of_what_is_limited_no_more_than_it_can_start(world: World) -> None:
    limited(world, concurrency=10)
    world.publish(9, to=("mail",))
    world.publish(9, to=("other",))
    claims = world.claim(world.worker(), counted=Counted(queues=frozenset({"mail"}), most=2))
    assert Counter(claim.queue for claim in claims) == {"mail": 2, "other": 9}


def test_suspects_and_lanes_are_counted_too(world: World) -> None:
    """H6, I10: what runs is what counts, however it was claimed."""
    limited(world, concurrency=2)
    world.publish(3, to=("mail",))
    for key in "abc":
        world.publish(2, to=("mail",), ordered=True, key=key)
    dead, worker = world.worker(), world.worker()
    assert len(world.claim(dead, limit=1, counted=MAIL)) == 1
    world.store.leases.end(dead, lost=True)
    (suspect,) = world.claim_suspect(worker, counted=MAIL)
    (head,) = world.claim_lanes(worker, counted=MAIL)
    assert (suspect.lost, head.key) == (1, "a")
    assert world.claim(worker, counted=MAIL) == world.claim_lanes(worker, counted=MAIL) == []
    world.settle([suspect, head])
    assert {claim.key for claim in world.claim_lanes(worker, counted=MAIL)} == {"a", "b"}


def test_the_places_of_a_dead_worker_are_free_when_its_lease_has_ended_and_not_before(world: World) -> None:
    limited(world)
    world.publish(9, to=("mail",))
    dead, worker = world.worker(lease=5), world.worker(lease=600)
    world.claim(dead, counted=MAIL)
    world.advance(10)
    assert world.claim(worker, counted=MAIL) == []
    world.store.leases.reclaim()
    assert len(world.claim(worker, counted=MAIL)) == 3


def test_a_limit_that_is_lowered_raised_or_taken_away_holds_from_the_next_claim_on(world: World) -> None:
    limited(world, concurrency=4)
    world.publish(20, to=("mail",))
    worker = world.worker(lease=600)
    claims = world.claim(worker, counted=MAIL)
    limited(world, concurrency=2)
    world.settle(claims[:2])
    assert world.claim(worker, counted=MAIL) == []
    limited(world, concurrency=5)
    assert len(world.claim(worker, counted=MAIL)) == 3
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=1, rate=None, lasts=5)
    world.advance(6)
    assert len(world.claim(worker, counted=MAIL)) == 13


@pytest.mark.parametrize("of", ["queue", "destination"])
def test_a_rate_is_kept_by_two_workers_together_on_the_databases_clock(world: World, of: str) -> None:
    """I12: 10 a second, whoever asks; what was not used is kept for a tenth of a second and no longer."""
    world.store.limits.set("mail", SOMEBODY, of=of, concurrency=None, rate=10)  # type: ignore[arg-type]
    counted = Counted(**{f"{of}s": frozenset({"mail"})})
    world.publish(200, to=("mail",))
    workers = [world.worker(lease=3600), world.worker(lease=3600)]
    for seconds, times in ((1.0, 5), (0.1, 30)):
        began, started = world.store.ping(), 0
        for _ in range(times):
            started += sum(len(world.claim(worker, counted=counted)) for worker in workers)
            world.advance(seconds)
        took = world.store.ping() - began
        assert times <= started <= min(10 * (took + 0.1) + 1, 1 + 4 * times)


def test_a_new_rate_begins_anew(world: World) -> None:
    limited(world, None, rate=0.001)
    world.publish(5, to=("mail",))
    worker = world.worker()
    assert len(world.claim(worker, counted=MAIL)) == 1
    assert world.claim(worker, counted=MAIL) == []
    limited(world, None, rate=100)
    assert len(world.claim(worker, counted=MAIL)) >= 1


def test_eight_workers_that_claim_at_the_same_moment_are_never_over_the_limit(world: World) -> None:
    limited(world, concurrency=5)
    world.publish(400, to=("mail",))
    lock, running, most = threading.Lock(), [0], [0]

    def work(_: int) -> int:
        worker, store, done = world.worker(), world.another_store(lock_timeout_sec=60), 0
        while world.store.claims.waiting(None).groups:
            claims = store.claims.take(worker, [Slice("mail", "mail", 0)], limit=3, counted=MAIL)
            with lock:
                running[0] += len(claims)
                most[0] = max(most[0], running[0])
            with lock:
                running[0] -= len(claims)
            store.claims.settle([(claim, SUCCEEDED) for claim in claims])
            done += len(claims)
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 400
    assert most[0] <= 5


@pytest.mark.postgres
def test_somebody_who_stands_still_with_the_lock_of_a_limit_keeps_only_what_it_limits(postgres_url: str) -> None:
    """H11: a worker that was stopped in the middle of a claim must not keep the others from all work."""
    world = World("postgres", postgres_url, lock_timeout_sec=0.1)
    limited(world)
    world.publish(3, to=("mail",))
    world.publish(3, to=("other",))
    with psycopg.connect(postgres_url) as stopped:
        stopped.execute("select from todoku_queue where name = 'mail' for update")
        assert Counter(claim.queue for claim in world.claim(world.worker(), counted=MAIL)) == {"other": 3}
    assert len(world.claim(world.worker(), counted=MAIL)) == 3
    world.close()
