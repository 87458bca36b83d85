"""Limits per key: of each key exactly so many run at once and start a second, over all workers; others go on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed, snoozed
from todoku.core.decision import SUCCEEDED
from todoku.core.identity import gate_id
from todoku.core.limit import Limit
from todoku.core.message import Claimed
from todoku.core.outcome import Done
from todoku.store.deliveries import Filter
from todoku.store.join import run
from todoku.store.limits import Counted

TWO = Limit(concurrency=2)


def call(world: World, number: int = 1, *, key: str | None = "a", **options: Any) -> None:
    """Publish `number` messages with a key that has a limit; the payload counts from `start`."""
    start = options.pop("start", 0)
    world.publish(number, per_key=TWO, key=key, payload=lambda place: start + place, **options)


def keys(claims: Sequence[Claimed]) -> Counter[str | None]:
    """How many of each key were claimed."""
    return Counter(claim.key for claim in claims)


def numbers(claims: Sequence[Claimed]) -> list[int]:
    """The payloads of what was claimed."""
    return [json.loads(claim.payload or "") for claim in claims]


def gates(world: World) -> list[tuple[Any, ...]]:
    """(key, running) of the gates there are."""
    return world.sql("select key, running from todoku_gate order by key")


def sound(world: World) -> None:
    """Every invariant that can be looked at holds."""
    assert world.store.broken(history_ttl=3600, ledger_ttl=3600) == {}


# ------------------------------------------------------------------------------------------ never over


def test_of_a_key_no_more_is_claimed_than_its_limit(world: World) -> None:
    call(world, 5)
    one, other = world.worker(), world.worker()
    claims = world.claim_gates(one, TWO)
    assert numbers(claims) == [0, 1]
    assert {claim.gate for claim in claims} == {gate_id("warehouse", "a")}
    assert world.claim_gates(one, TWO) == world.claim_gates(other, TWO) == []
    sound(world)


def test_what_is_at_its_limit_is_skipped_and_other_keys_go_on(world: World) -> None:
    call(world, 50, key="a")
    worker = world.worker()
    assert keys(world.claim_gates(worker, TWO)) == {"a": 2}
    call(world, 1, key="b")
    call(world, 3, key="c")
    assert keys(world.claim_gates(worker, TWO)) == {"b": 1, "c": 2}


def test_what_ends_makes_room_for_as_much_and_no_more(world: World) -> None:
    call(world, 5)
    worker = world.worker()
    first, second = world.claim_gates(worker, TWO)
    world.settle([first])
    assert numbers(world.claim_gates(worker, TWO)) == [2]
    world.settle([second], failed(delay=60))
    (third,) = world.claim_gates(worker, TWO)
    assert numbers([third]) == [3]
    world.store.claims.release([third])
    assert numbers(world.claim_gates(worker, TWO)) == [3]
    sound(world)


@pytest.mark.parametrize("ending", [aborted(), failed(delay=9), snoozed(9)], ids=["aborted", "failed", "snoozed"])
def test_every_end_of_an_attempt_gives_its_place_back(world: World, ending: Any) -> None:
    call(world, 4)
    worker = world.worker()
    world.settle(world.claim_gates(worker, TWO), ending)
    assert numbers(world.claim_gates(worker, TWO)) == [2, 3]
    sound(world)


def test_a_transactional_success_gives_its_place_back(world: World) -> None:
    call(world, 3)
    worker = world.worker()
    first, _ = world.claim_gates(worker, TWO)
    world.store.claims.transact(first, lambda _: Done(), limit=10)
    assert numbers(world.claim_gates(worker, TWO)) == [2]


def test_calls_without_a_key_and_other_destinations_are_not_limited(world: World) -> None:
    call(world, 9, key=None)
    call(world, 3, to=("warehouse", "mail"))
    worker = world.worker()
    assert len(world.claim(worker)) == 9
    assert Counter(claim.destination for claim in world.claim_gates(worker, TWO)) == {"warehouse": 2, "mail": 2}


def test_a_plain_claim_passes_gates_over(world: World) -> None:
    call(world, 2)
    worker = world.worker()
    assert world.claim(worker) == world.claim_lanes(worker) == world.claim_suspect(worker) == []


def test_workers_that_claim_at_the_same_moment_stay_within_every_limit(world: World) -> None:
    """8 workers with connections of their own, 6 keys, 50 rows each: of each key 2 at any time, and all are done."""
    for key in range(6):
        call(world, 50, key=str(key))
    lock, running = threading.Lock(), Counter[str | None]()
    most: Counter[str | None] = Counter()

    def work(_: int) -> int:
        worker, store, done = world.worker(), world.another_store(lock_timeout_sec=60), 0
        while claims := world.claim_gates(worker, TWO, limit=20, store=store):
            with lock:
                running.update(keys(claims))
                for key in running:
                    most[key] = max(most[key], running[key])
            with lock:
                running.subtract(keys(claims))
            store.claims.settle([(claim, SUCCEEDED) for claim in claims])
            done += len(claims)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(work, range(8)))
    rest = finish(world, world.worker())
    assert done + rest == 300
    assert set(most.values()) == {2}
    assert gates(world) == []
    sound(world)


def finish(world: World, worker: UUID) -> int:
    """Run everything that may run now."""
    number = 0
    while claims := world.claim_gates(worker, TWO):
        number += len(claims)
        world.settle(claims)
    return number


# -------------------------------------------------------------------------------------- which, and when


def test_larger_priorities_come_first_then_who_waited_longest(world: World) -> None:
    for place, priority in enumerate((0, 3, 0, 3)):
        call(world, 1, start=place, priority=priority)
    assert numbers(world.claim_gates(world.worker(), Limit(concurrency=3))) == [1, 3, 0]


def test_what_is_due_is_found_behind_what_is_not(world: World) -> None:
    """A larger priority that is for later does not keep a smaller one that is due."""
    call(world, 3, priority=9, delay=60)
    call(world, 1, start=7)
    worker = world.worker(lease=600)
    assert numbers(world.claim_gates(worker, TWO)) == [7]
    world.advance(61)
    assert numbers(world.claim_gates(worker, TWO)) == [0]


def test_a_gate_with_nothing_due_is_not_looked_at_before_its_time(world: World) -> None:
    call(world, 1, delay=60)
    worker = world.worker(lease=600)
    assert world.claim_gates(worker, TWO) == []
    ((_, _, seconds),) = world.store.claims.waiting(None).gates
    assert 50 < seconds <= 60
    call(world, 1, start=5)
    assert numbers(world.claim_gates(worker, TWO)) == [5]
    sound(world)


def test_keys_take_turns(world: World) -> None:
    """A key with a long line comes round after the others, however old its rows are."""
    call(world, 50, key="a")
    worker = world.worker()
    ran: list[str | None] = []
    for key in "bcd":
        call(world, 1, key=key)
    for _ in range(4):
        claims = world.claim_gates(worker, TWO, limit=1)
        ran += [claim.key for claim in claims]
        world.settle(claims)
    assert sorted(map(str, ran)) == ["a", "b", "c", "d"]


def test_a_claim_takes_no_more_than_it_asks_for(world: World) -> None:
    for key in "abcdef":
        call(world, 2, key=key)
    assert len(world.claim_gates(world.worker(), TWO, limit=4)) == 4


def test_paused_queues_and_open_breakers_keep_gates_too(world: World) -> None:
    call(world, 1)
    worker = world.worker()
    world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    assert world.claim_gates(worker, TWO) == []
    world.store.queues.pause("warehouse", SOMEBODY, paused=False)
    world.store.limits.set_breaker("warehouse", open_for=60)
    assert world.claim_gates(worker, TWO) == []
    world.store.limits.set_breaker("warehouse", open_for=0)
    assert len(world.claim_gates(worker, TWO)) == 1


# --------------------------------------------------------------------------------------- owners that die


def test_a_dead_owner_gives_its_places_back_when_its_lease_has_ended_and_not_before(world: World) -> None:
    """H6: what it held runs alone, within the limit; the rest goes on."""
    call(world, 6)
    dead, worker = world.worker(lease=5), world.worker(lease=600)
    world.claim_gates(dead, TWO)
    assert world.claim_gates(worker, TWO) == []
    world.advance(10)
    assert world.claim_gates(worker, TWO) == []
    assert world.store.leases.reclaim().freed == 2
    assert numbers(world.claim_gates(worker, TWO)) == [2, 3]
    assert world.claim_suspect(worker) == []
    sound(world)


def test_a_suspect_takes_a_place_of_its_key(world: World) -> None:
    """H6, and the limit: beside one suspect one other runs."""
    call(world, 4)
    dead, worker = world.worker(), world.worker()
    world.claim_gates(dead, TWO)
    world.store.leases.end(dead, lost=True)
    (suspect,) = world.claim_suspect(worker)
    assert (suspect.lost, suspect.gate) == (1, gate_id("warehouse", "a"))
    assert numbers(world.claim_gates(worker, TWO)) == [2]
    assert world.claim_suspect(worker) == []
    world.settle([suspect])
    assert len(world.claim_suspect(worker)) == 1
    assert world.claim_gates(worker, TWO) == []
    sound(world)


def test_a_worker_whose_lease_ended_claims_nothing(world: World) -> None:
    """I3."""
    call(world, 2)
    late = world.worker(lease=5)
    world.advance(10)
    assert world.claim_gates(late, TWO) == []
    assert len(world.claim_gates(world.worker(), TWO)) == 2


# ------------------------------------------------------------------------------------ what a person does


def test_cancelled_settled_purged_and_expired_rows_leave_the_gate_as_it_should_be(world: World) -> None:
    call(world, 8, expires=30)
    worker = world.worker(lease=600)
    running, _ = world.claim_gates(worker, TWO)
    ids = [row.id for row in world.deliveries(status="pending")]
    world.store.acts.cancel(Filter(ids=(ids[0], running.id)), SOMEBODY)
    world.store.acts.settle_by_hand(Filter(ids=(ids[1],)), SOMEBODY, succeeded=True)
    world.store.acts.settle_by_hand(Filter(ids=(ids[2],)), SOMEBODY, succeeded=False)
    world.store.acts.purge(Filter(ids=(ids[0], ids[2])), SOMEBODY)
    sound(world)
    world.settle([running], failed())
    assert numbers(world.claim_gates(worker, TWO)) == [5]
    world.advance(31)
    assert world.store.retention.expire(unknown_after=3600)[0] == 2
    sound(world)


def test_a_replayed_delivery_finds_its_gate_again(world: World) -> None:
    """I9: the gate was gone, because nothing was left to do."""
    call(world, 3)
    worker = world.worker()
    while claims := world.claim_gates(worker, TWO):
        world.settle(claims, aborted())
    assert gates(world) == []
    assert len(world.store.acts.replay(Filter(status="aborted"), SOMEBODY).changed) == 3
    assert len(world.claim_gates(worker, TWO)) == 2
    assert world.claim_gates(worker, TWO) == []
    sound(world)


def test_a_duplicate_publish_that_reopens_a_dead_letter_finds_the_gate_too(world: World) -> None:
    """H15."""
    options = {"key": "a", "per_key": TWO, "idempotency_key": "once", "reopen": True}
    world.publish(1, **options)
    worker = world.worker()
    world.settle(world.claim_gates(worker, TWO), aborted())
    assert world.publish(1, **options)[0].duplicate
    sound(world)
    assert len(world.claim_gates(worker, TWO)) == 1


def test_what_nobody_has_registered_is_aborted_at_gates_too(world: World) -> None:
    """UNKNOWN_DESTINATION."""
    call(world, 3)
    world.advance(700)
    assert world.store.retention.expire(unknown_after=600) == (0, 3)
    sound(world)


# --------------------------------------------------------------------------------- limits that change


def test_another_limit_holds_from_the_first_claim_on(world: World) -> None:
    call(world, 9)
    worker = world.worker()
    assert len(world.claim_gates(worker, Limit(concurrency=4))) == 4
    claims = world.claim_gates(worker, TWO)
    assert claims == []
    held = world.store.leases.owned(worker)
    world.store.claims.release(held[:1])
    assert world.claim_gates(worker, TWO) == []
    assert len(world.claim_gates(worker, Limit(concurrency=5))) == 0, "the gate was full for two at the last look"
    world.store.claims.release(held[1:3])
    assert len(world.claim_gates(worker, Limit(concurrency=5))) == 4
    sound(world)


def test_without_a_limit_any_more_everything_may_run(world: World) -> None:
    call(world, 9)
    assert len(world.claim_gates(world.worker(), None)) == 9


# ----------------------------------------------------------------------------------------------- rates


def test_a_rate_is_kept_by_two_workers_together_on_the_databases_clock(world: World) -> None:
    """I12: 10 a second, whoever asks; what was not used is kept for a tenth of a second and no longer."""
    pace = Limit(rate=10)
    call(world, 100)
    workers = [world.worker(lease=3600), world.worker(lease=3600)]
    for seconds, times in ((1.0, 5), (0.1, 40)):
        began, started = world.store.ping(), 0
        for _ in range(times):
            started += sum(len(world.claim_gates(worker, pace)) for worker in workers)
            world.advance(seconds)
        took = world.store.ping() - began
        assert times <= started <= min(10 * (took + 0.1) + 1, 1 + 4 * times)
    sound(world)


def test_a_rate_is_remembered_when_nothing_is_left_to_do(world: World) -> None:
    pace, worker = Limit(rate=0.1), world.worker(lease=3600)
    for start in range(2):
        call(world, 1, start=start)
        world.settle(claims := world.claim_gates(worker, pace))
        assert len(claims) == 1 - start
    world.advance(11)
    world.settle(world.claim_gates(worker, pace))
    assert gates(world) == [("a", 0)]
    world.advance(11)
    assert world.claim_gates(worker, pace) == []
    assert gates(world) == []


def test_concurrency_and_rate_hold_together(world: World) -> None:
    both, worker = Limit(concurrency=2, rate=1000), world.worker(lease=600)
    call(world, 5)
    assert len(world.claim_gates(worker, both)) == 2
    world.advance(5)
    assert world.claim_gates(worker, both) == []


# ----------------------------------------------------------------------- together with a queue's limit


def test_the_limit_of_the_queue_holds_for_gates_and_others_together(world: World) -> None:
    world.store.limits.set("q", SOMEBODY, of="queue", concurrency=3, rate=None)
    counted = Counted(queues=frozenset({"q"}))
    for key in "abc":
        call(world, 2, key=key, queue="q")
    world.publish(5, queue="q")
    worker = world.worker()
    assert len(world.claim(worker, limit=1, counted=counted)) == 1
    assert len(world.claim_gates(worker, TWO, counted=counted)) == 2
    assert world.claim(worker, counted=counted) == world.claim_gates(worker, TWO, counted=counted) == []
    sound(world)


# ------------------------------------------------------------------------------------ who else is there


@pytest.mark.postgres
def test_publishers_of_one_key_wait_for_nobody_and_nobody_for_them(postgres_url: str) -> None:
    """A caller's transaction may stay open for an hour: settle, claim and other publishers go on."""
    world = World("postgres", postgres_url)
    call(world, 2)
    worker = world.worker()
    first, second = world.claim_gates(worker, TWO)
    with psycopg.connect(postgres_url) as one, psycopg.connect(postgres_url) as other:
        for place, connection in enumerate((one, other)):
            drafts = world.drafts(1, per_key=TWO, key="a", payload=lambda _, n=place: 10 + n)
            run(connection, "postgresql", world.steps(drafts))
        assert world.settle([first, second]).stuck == ()
        assert gates(world) == []
        assert world.claim_gates(worker, TWO) == []
        other.commit()
        assert numbers(world.claim_gates(worker, TWO)) == [11]
        one.commit()
    assert numbers(world.claim_gates(worker, TWO)) == [10]
    sound(world)
    world.close()


def test_lag_counts_what_waits_at_gates(world: World) -> None:
    call(world, 5)
    world.claim_gates(world.worker(), TWO)
    lag = world.store.statistics.lag(stuck_after=60)
    assert (lag.due, lag.sending) == (3, 2)


def test_keys_at_their_limit_can_be_seen(world: World) -> None:
    call(world, 5, key="a")
    call(world, 2, key="b")
    world.claim_gates(world.worker(), TWO)
    (full,) = world.store.statistics.full_gates()
    assert (full.destination, full.key, full.concurrency, full.running, full.waiting) == ("warehouse", "a", 2, 2, 3)
