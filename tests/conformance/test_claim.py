"""Claim: which deliveries a worker gets, in which order, and what those it cannot have cost it (H20, H24)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.message import Claimed
from todoku.engine.claim import ClaimCursor, SharedWaiting
from todoku.store.claim_lists import Listing
from todoku.store.claims import Waiting
from todoku.store.database import Slice
from todoku.store.limits import Counted
from todoku.store.postgres.database import PostgresDatabase
from todoku.store.sqlite.database import SqliteDatabase, SqliteTx
from todoku.store.store import Store


def numbers(claims: Sequence[Claimed]) -> list[str | None]:
    """What the payloads say: tests publish a number or a name in each."""
    return [claim.payload for claim in claims]


def publish(world: World, name: str, **options: Any) -> None:
    """One message that carries its name."""
    world.publish(payload=lambda _: name, **options)


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


# ------------------------------------------------------------------------------------------- what is claimed


def test_large_and_small_messages_of_one_claim_come_as_they_were_published(world: World) -> None:
    """Payload and headers, byte for byte: with quotes and line breaks, of any length, absent or empty."""
    texts: list[str | None] = [
        '{"n":"\\" \\n \\\\ ü 😀"}',
        '"' + "é" * 9000 + '"',
        None,
        None,
        '"' + "x" * 100_000 + '"',
        None,
    ]
    raws = [None, None, b"", bytes(range(256)) * 100, None, b"\0"]
    headers = ['{"a":"b"}', None, '{"large":"' + "h" * 20_000 + '"}', None, None, "{}"]
    made = [
        msgspec.structs.replace(draft, payload=text, payload_bytes=raw, headers=header)
        for draft, text, raw, header in zip(world.drafts(6), texts, raws, headers, strict=True)
    ]
    world.store.run(world.steps(made))
    claims = world.claim(world.worker())
    assert [claim.message_id for claim in claims] == [str(draft.id) for draft in made]
    assert [claim.payload for claim in claims] == texts
    assert [claim.payload_bytes for claim in claims] == raws
    assert [claim.headers for claim in claims] == headers


# ---------------------------------------------------------------------------------------------------- order


def test_within_a_priority_the_earlier_comes_first(world: World) -> None:
    """Claim: time order, not the order of publishing; of the same moment, the order of publishing."""
    publish(world, "third", at=ago(10))
    publish(world, "first", at=ago(30))
    publish(world, "second", at=ago(20))
    same = ago(5)
    for name in ("fourth", "fifth", "sixth"):
        publish(world, name, at=same)
    worker = world.worker()
    taken = [claim for _ in range(3) for claim in world.claim(worker, limit=2)]
    assert numbers(taken) == ['"first"', '"second"', '"third"', '"fourth"', '"fifth"', '"sixth"']


def test_a_larger_priority_comes_first_however_late(world: World) -> None:
    """Claim: priorities are whole numbers 0…15, larger is sooner."""
    for priority, seconds in ((0, 50), (3, 40), (15, 1), (3, 20), (0, 60)):
        publish(world, f"{priority}:{seconds}", priority=priority, at=ago(seconds))
    worker = world.worker()
    taken = [claim for _ in range(3) for claim in world.claim(worker, limit=2)]
    assert numbers(taken) == ['"15:1"', '"3:40"', '"3:20"', '"0:60"', '"0:50"']


def test_a_claim_is_made_slice_by_slice_in_the_order_given(world: World) -> None:
    """Port: what the first slice has is not passed over for a later one, whatever their queues and priorities."""
    for name in "abc":
        world.publish(5, to=[name])
    slices = [Slice(name, name, 0) for name in "cab"]
    taken = world.store.claims.take(world.worker(), slices, limit=7)
    assert [claim.destination for claim in taken].count("c") == 5
    assert [claim.destination for claim in taken].count("a") == 2


@pytest.mark.parametrize(("limit", "most"), [(1, 500), (7, 500), (10, 500), (11, 500), (29, 500), (40, 500), (25, 4)])
def test_a_claim_takes_exactly_as_many_as_asked_for_from_however_many_slices(
    world: World, limit: int, most: int
) -> None:
    """Port: never more than the limit, nor than a slice's own; what it does not return it has not touched."""
    for name in "abc":
        world.publish(10, to=[name])
    slices = [Slice(name, name, 0, most=most) for name in "abc"]
    worker = world.worker()
    taken = world.store.claims.take(worker, slices, limit=limit)
    assert len(taken) == len({claim.id for claim in taken}) == min(limit, 3 * min(most, 10))
    owned = {held.id for held in world.store.leases.owned(worker)}
    assert owned == {claim.id for claim in taken}
    assert {(row.status, row.attempts, row.epoch) for row in world.deliveries() if row.id not in owned} <= {
        ("pending", 0, 0)
    }


def test_a_claim_brings_everything_it_takes_to_execute(world: World) -> None:
    """Claim: payload, headers, key and number of the attempt come with the row, which says who owns it."""
    (message,) = world.publish(
        payload=lambda _: {"text": "Größe ✓"}, key="k", idempotency_key="i", headers={"trace": "t"}, priority=2
    )
    worker = world.worker()
    (claim,) = world.claim(worker)
    assert (claim.message_id, claim.topic, claim.key) == (str(message.id), "order.created", "k")
    assert (claim.payload, claim.headers) == ('{"text":"Größe ✓"}', '{"trace":"t"}')
    assert (claim.attempt, claim.max_attempts, claim.epoch, claim.lost, claim.worker) == (1, 6, 1, 0, worker)
    assert (claim.destination, claim.queue, claim.priority, claim.lane) == ("warehouse", "warehouse", 2, None)
    assert (claim.key_hash is None, claim.effect_state) == (False, None)
    assert claim.created_at == message.created_at.timestamp()


def test_two_workers_never_get_the_same_row(world: World) -> None:
    """I3: in turn, in one process; `test_many_processes` has them at once."""
    world.publish(20)
    one, other = world.worker(), world.worker()
    taken = [claim.id for _ in range(5) for worker in (one, other) for claim in world.claim(worker, limit=3)]
    assert len(taken) == len(set(taken)) == 20


@pytest.mark.postgres
def test_rows_that_somebody_has_locked_are_passed_over(postgres_url: str) -> None:
    """Claim: SKIP LOCKED; an operator's open transaction holds up its own rows and nobody else's."""
    world = World("postgres", postgres_url)
    world.publish(10)
    worker = world.worker()
    with world.connect() as holding:
        locked = {id for (id,) in holding.execute("select id from todoku_delivery order by id limit 4 for update")}
        taken = world.claim(worker, limit=5)
        assert [claim.id for claim in taken] == sorted({row.id for row in world.deliveries()} - locked)[:5]
        assert len(world.claim(worker)) == 1
        holding.rollback()
    assert {claim.id for claim in world.claim(worker)} == locked
    world.close()


# ---------------------------------------------------------------------------------------------- given back


def test_a_prefetched_row_that_never_started_gives_its_attempt_back(world: World) -> None:
    """I4: released, it is where it was: same place in the line, same number of attempts, a younger epoch."""
    world.publish(5)
    before = world.deliveries()
    claims = world.claim(world.worker())
    assert world.store.claims.release(claims[1:]) == ()
    started, *others = world.deliveries()
    assert (started.status, started.attempts) == ("sending", 1)
    assert [(row.status, row.attempts, row.epoch, row.worker) for row in others] == [("pending", 0, 2, None)] * 4
    assert [row.next_run_at for row in others] == [row.next_run_at for row in before[1:]]
    again = world.claim(world.worker())
    assert [(claim.id, claim.attempt, claim.epoch) for claim in again] == [(row.id, 1, 3) for row in others]


def test_a_row_released_for_later_waits_until_then(world: World) -> None:
    """H24: what a breaker sent back is touched once per opening, not at each poll."""
    world.publish()
    worker = world.worker()
    assert world.store.claims.release(world.claim(worker), delay=30) == ()
    world.advance(29)
    assert world.claim(worker) == []
    world.advance(1.001)
    (claim,) = world.claim(worker)
    assert claim.attempt == 1


# ------------------------------------------------------------------------------------------ what cannot run


def test_a_paused_queue_is_left_alone_until_it_is_resumed(world: World) -> None:
    """Claim: from the commit of the pause on, for rows, suspects and lanes alike; and other queues go on."""
    world.publish(3, to=["halted"])
    world.publish(2, to=["halted"], ordered=True, key="k")
    first, worker = world.worker(), world.worker()
    world.claim(first, limit=1)
    world.store.leases.end(first, lost=True)  # leaves a suspect
    world.publish(2, to=["running"])
    world.store.queues.pause("halted", SOMEBODY, paused=True)
    assert {claim.destination for claim in world.claim(worker)} == {"running"}
    assert world.claim_suspect(worker) == world.claim_lanes(worker) == []
    world.store.queues.pause("halted", SOMEBODY, paused=False)
    assert (len(world.claim(worker)), len(world.claim_suspect(worker)), len(world.claim_lanes(worker))) == (2, 1, 2)


def test_what_was_claimed_before_the_pause_is_its_owners(world: World) -> None:
    """Claim: a pause stops claims, not attempts."""
    world.publish()
    claims = world.claim(world.worker())
    world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    assert world.settle(claims).lost == ()


def test_an_open_breaker_keeps_every_worker_away_and_burns_no_attempts(world: World) -> None:
    """H24: in the database, for all workers, for rows, suspects and lanes, until `open_until`; others go on."""
    world.publish(3, to=["broken"])
    world.publish(2, to=["broken"], ordered=True, key="k")
    first, worker = world.worker(), world.worker(lease=600)
    world.claim(first, limit=1)
    world.store.leases.end(first, lost=True)
    world.publish(2, to=["well"])
    world.store.limits.set_breaker("broken", open_for=30, failures=5)
    assert {claim.destination for claim in world.claim(worker)} == {"well"}
    assert world.claim_suspect(worker) == world.claim_lanes(worker) == []
    assert {row.attempts for row in world.deliveries(destination="broken")} == {0}
    world.advance(30.001)
    assert (len(world.claim(worker)), len(world.claim_suspect(worker)), len(world.claim_lanes(worker))) == (2, 1, 2)


def test_a_breaker_closed_by_hand_lets_claims_through_at_once(world: World) -> None:
    """H24: `open_for=0` closes it."""
    world.publish()
    world.store.limits.set_breaker("warehouse", open_for=3600)
    assert world.claim(world.worker()) == []
    world.store.limits.set_breaker("warehouse", open_for=0)
    assert len(world.claim(world.worker())) == 1


def test_a_future_delivery_waits_for_its_time(world: World) -> None:
    """I12: by the database's clock, to the moment."""
    publish(world, "now")
    publish(world, "later", delay=60)
    worker = world.worker(lease=600)
    assert numbers(world.claim(worker)) == ['"now"']
    world.advance(59)
    assert world.claim(worker) == []
    world.advance(1)
    assert numbers(world.claim(worker)) == ['"later"']


def test_an_expired_delivery_is_never_claimed(world: World) -> None:
    """§2: whether it waits for the first time, for its back-off, alone as a suspect, or in a lane."""
    world.publish(3, expires=60)
    world.publish(1, to=["ordered"], ordered=True, key="k", expires=60)
    worker, first = world.worker(lease=600), world.worker(lease=600)
    (retried,) = world.claim(worker, limit=1)
    world.settle([retried], failed())
    world.claim(first, limit=1)
    world.store.leases.end(first, lost=True)
    world.advance(61)
    assert world.claim(worker) == world.claim_suspect(worker) == world.claim_lanes(worker) == []
    assert {row.status for row in world.deliveries()} == {"pending", "failed"}


def test_a_worker_claims_only_destinations_it_has_registered(world: World) -> None:
    """§2: a rolling deploy does not give the old version what only the new one knows."""
    world.publish(2, to=["known", "new"])
    worker = world.worker()
    assert {claim.destination for claim in world.claim(worker, destinations=["known"])} == {"known"}
    assert world.claim(worker, destinations=["known"]) == world.claim(worker, destinations=[]) == []
    assert {row.status for row in world.deliveries(destination="new")} == {"pending"}
    assert len(world.claim(worker, destinations=["known", "new"])) == 2


def test_lanes_and_suspects_are_not_claimed_as_rows(world: World) -> None:
    """I10, H6: they have claims of their own, and each leaves the others' alone."""
    world.publish(3)
    world.publish(3, to=["warehouse"], ordered=True, key="k")
    first, worker = world.worker(), world.worker()
    (suspect,) = world.claim(first, limit=1)
    world.store.leases.end(first, lost=True)
    waiting = world.store.claims.waiting(None)
    assert [group[:3] for group in waiting.groups] == [("warehouse", "warehouse", 0)]
    assert waiting.suspects == waiting.lanes == (("warehouse", "warehouse"),)
    rows, alone, lanes = world.claim(worker), world.claim_suspect(worker), world.claim_lanes(worker)
    assert [len(rows), len(alone), len(lanes)] == [2, 1, 3]
    assert alone[0].id == suspect.id
    assert {claim.lane is None for claim in rows + alone} == {True}
    assert {claim.lane is None for claim in lanes} == {False}


def test_what_waits_for_its_back_off_or_is_dead_is_not_claimed(world: World) -> None:
    """§2: `failed` until its time has come, then claimable again; `aborted` until somebody replays it."""
    world.publish(3)
    worker = world.worker(lease=600)
    later, dead, fine = world.claim(worker)
    world.settle([later], failed(delay=20))
    world.settle([dead], aborted())
    world.settle([fine])
    assert world.claim(worker) == []
    world.advance(20.001)
    (again,) = world.claim(worker)
    assert (again.id, again.attempt, again.epoch) == (later.id, 2, 3)
    assert world.claim(worker) == []


def test_places_with_work_are_told_whether_it_is_due_or_not(world: World) -> None:
    """Port: `waiting` names each (queue, destination, priority) once, with the time of its first delivery, and only
    those that were asked for."""
    world.publish(3, to=["a", "b"], queue="shared")
    world.publish(3, to=["a"], queue="shared", priority=7, delay=3600)
    world.publish(2, to=["c"])
    world.publish(4, to=["d"], ordered=True, key="k")
    first = min(row.next_run_at for row in world.deliveries(destination="a")).timestamp()
    later = min(row.next_run_at for row in world.deliveries(destination="a") if row.priority == 7).timestamp()
    assert world.store.claims.waiting(["a", "d", "none"]) == Waiting(
        groups=(("shared", "a", 0, first), ("shared", "a", 7, later)),
        suspects=(),
        lanes=(("d", "d"),),
    )
    assert len(world.store.claims.waiting(None).groups) == 4
    assert world.store.claims.waiting([]) == Waiting((), (), ())


# ------------------------------------------------------------------------------- from a remembered position


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Costly:
    """A store in which looking where work waits, as each full scan does, takes a while of the test's clock: it works,
    or it waits for a lock. It is its own `claims`."""

    def __init__(self, store: Store, clock: Clock, cost: float, lock: float) -> None:
        self._store = store
        self._clock = clock
        self._cost = cost
        self._lock = lock
        self.seconds = 0.0
        self.looks = self.takes = 0
        self.slices: Sequence[Slice] = ()
        self.claims = self

    def waiting(self, destinations: Sequence[str] | None) -> Waiting:
        self.looks += 1
        self._clock.now += self._cost + self._lock
        self.seconds += self._cost
        return self._store.claims.waiting(destinations)

    def take(
        self, worker: UUID, slices: Sequence[Slice], *, limit: int, counted: Counted, listing: Listing | None
    ) -> list[Claimed]:
        self.takes += 1
        self.slices = slices
        return self._store.claims.take(worker, slices, limit=limit, counted=counted, listing=listing)


def claiming(
    world: World, clock: Clock, *, to: Sequence[str] = ("warehouse",), cost: float = 0.0, lock: float = 0.0
) -> tuple[ClaimCursor, Costly]:
    store = Costly(world.store, clock, cost, lock)
    return ClaimCursor(store, world.worker(lease=600), to, monotonic=clock), store  # type: ignore[arg-type]


def test_while_positions_find_work_rows_behind_them_are_found_within_a_quarter_of_a_second(world: World) -> None:
    """Claim, H19: a caller's long transaction commits late, behind the position; a full scan finds its rows."""
    clock = Clock()
    claims, store = claiming(world, clock)
    for name in "abcdef":
        publish(world, name)
    assert numbers(claims.claim(2)) == ['"a"', '"b"']
    publish(world, "late", at=ago(3600))
    assert numbers(claims.claim(2)) == ['"c"', '"d"'], "from the position on"
    clock.now += 0.2
    assert numbers(claims.claim(1)) == ['"e"']
    assert store.looks == 1
    clock.now += 0.06
    assert numbers(claims.claim(1)) == ['"late"']
    assert numbers(claims.claim(5)) == ['"f"']
    assert store.looks == 2


def test_when_positions_find_nothing_a_cheap_full_scan_follows_at_once(world: World) -> None:
    """Claim: an idle worker does not let a late or released row wait."""
    clock = Clock()
    claims, _ = claiming(world, clock, cost=0.001)
    publish(world, "first")
    first = claims.claim(5)
    assert numbers(first) == ['"first"']
    publish(world, "late", at=ago(3600))
    assert numbers(claims.claim(5)) == ['"late"']
    world.store.claims.release(first)
    assert numbers(claims.claim(5)) == ['"first"']


def test_a_full_scan_begins_at_the_first_delivery_of_each_place(world: World) -> None:
    """Claim: looking where work waits passes over the dead rows before it, so the claim of the scan need not again."""
    clock = Clock()
    claims, store = claiming(world, clock)
    for name in "ab":
        publish(world, name)
    first = min(row.next_run_at for row in world.deliveries()).timestamp()
    assert numbers(claims.claim(5)) == ['"a"', '"b"']
    assert [(part.after_at, part.after_id) for part in store.slices] == [(first, 0)]


def test_after_a_full_scan_that_found_only_later_deliveries_earlier_ones_are_found(world: World) -> None:
    """Claim: where nothing was due the scan leaves no position, behind which the next delivery would not be seen."""
    clock = Clock()
    claims, store = claiming(world, clock)
    world.publish(1, delay=3600)
    assert claims.claim(5) == []
    publish(world, "now")
    assert numbers(claims.claim(5, busy=True)) == ['"now"']
    assert store.looks == 1


def test_MEND_2_pools_that_share_a_look_have_all_paid_for_it(world: World) -> None:
    """Claim: dead rows make each look slow. One look serves all pools of a round, and none of them repeats it soon."""
    clock = Clock()
    store = Costly(world.store, clock, cost=1.0, lock=0.0)
    shared, worker = SharedWaiting(store, [["a"], ["b"]]), world.worker(lease=600)  # type: ignore[arg-type]
    pools = [ClaimCursor(store, worker, [name], monotonic=clock, shared=shared) for name in "ab"]  # type: ignore[arg-type]
    for _ in range(10):
        shared.invalidate()
        assert [pool.claim(5, busy=True) for pool in pools] == [[], []]
        clock.now += 0.1
    assert store.looks == 1


def test_MEND_2_full_scans_of_a_busy_worker_take_at_most_a_twentieth_of_its_time(world: World) -> None:
    """Claim: dead rows under another's old snapshot make a scan cost a second; rounds every 0.1 s do not repeat it,
    while other pools of the worker have work."""
    clock = Clock()
    claims, store = claiming(world, clock, cost=1.0)
    began = clock.now
    for _ in range(1000):
        assert claims.claim(5, busy=True) == []
        clock.now += 0.1
    assert store.looks * 1.0 <= 0.05 * (clock.now - began) + 1.0
    assert store.looks >= 4, "but it does look again"

    claims.request_scan()
    looks = store.looks
    assert claims.claim(5, busy=True) == []
    assert store.looks == looks, "a notice does not cost a busy worker more than its 5 %"


def test_a_pool_beside_one_that_holds_enough_scans_for_a_twentieth_of_the_time(world: World) -> None:
    """Rounds come after every settle of the other pool, each a millisecond after the last; a notice counts at once."""
    clock = Clock()
    claims, store = claiming(world, clock, cost=0.002)
    began = clock.now
    for _ in range(1000):
        assert claims.claim(5, working=True) == []
        clock.now += 0.001
    assert 0.04 <= store.looks * 0.002 / (clock.now - began) <= 0.051
    assert claims.claim(5, working=True) == []
    publish(world, "new")
    claims.request_scan()
    assert numbers(claims.claim(5, working=True)) == ['"new"']


def test_MEND_2_an_idle_worker_scans_once_a_second_whatever_the_last_scan_took(world: World) -> None:
    """MEND-2: a scan took three seconds, and a job of a new type waited 57 s beside an idle worker."""
    clock = Clock()
    claims, store = claiming(world, clock, cost=3.0)
    assert claims.claim(5) == []
    publish(world, "late", at=ago(3600))
    clock.now += 0.9
    assert claims.claim(5) == []
    assert store.looks == 1, "not at every poll either"
    clock.now += 0.11
    assert numbers(claims.claim(5)) == ['"late"']


def test_MEND_2_a_notice_makes_an_idle_worker_look_everywhere(world: World) -> None:
    """MEND-2: what a publisher gives notice of is found, however much the last scan cost; a notice counts once."""
    clock = Clock()
    claims, store = claiming(world, clock, cost=3.0)
    assert claims.claim(5) == []
    publish(world, "new")
    assert claims.claim(5) == []
    claims.request_scan()
    assert numbers(claims.claim(5)) == ['"new"']
    assert (claims.claim(5), store.looks) == ([], 2)


def test_after_a_lone_message_the_scan_that_is_owed_claims_nothing_in_vain(world: World) -> None:
    """Claim: it asks what waits, and finds what is elsewhere. What is noticed next is claimed first, where it was."""
    clock = Clock()
    claims, store = claiming(world, clock, to=("warehouse", "other"), cost=0.001)
    publish(world, "first")
    assert numbers(claims.claim(5)) == ['"first"']
    looks = takes = 0
    for name in ("second", "third"):
        publish(world, name)
        claims.request_scan()
        looks, takes = store.looks, store.takes
        assert numbers(claims.claim(5)) == [f'"{name}"']
        assert (store.looks, store.takes) == (looks, takes + 1)
        claims.look_next()
    assert claims.claim(5) == []
    assert (store.looks, store.takes) == (looks + 1, takes + 1)

    publish(world, "fourth")
    claims.request_scan()
    claims.claim(5)
    publish(world, "elsewhere", to=("other",))
    claims.look_next()
    assert numbers(claims.claim(5)) == ['"elsewhere"'], "what waits at a new place is not forgotten"


def test_MEND_2_waiting_for_a_lock_does_not_count_as_the_cost_of_a_scan(world: World) -> None:
    """MEND-2: another connection held the write lock for three seconds. The next scans come as if nothing had been."""
    clock = Clock()
    claims, store = claiming(world, clock, cost=0.001, lock=3.0)
    for busy in (True, False):
        for _ in range(10):
            looks = store.looks
            claims.claim(5, busy=busy)
            assert store.looks == looks + 1
            clock.now += 0.26


def test_MEND_2_a_store_counts_what_claims_work_and_not_what_they_wait(world: World) -> None:
    """MEND-2: another connection holds the write lock of SQLite, or the lock of a limit on PostgreSQL."""
    world.publish(3)
    worker, counted = world.worker(), Counted(queues=frozenset({"warehouse"}))
    world.store.limits.set("warehouse", SOMEBODY, of="queue", concurrency=2, rate=None)
    before = world.store.claims.seconds
    world.store.claims.waiting(None)
    assert world.store.claims.seconds > before
    patient = world.another_store(lock_timeout_sec=60.0)
    slices, claims = [Slice("warehouse", "warehouse", 0)], list[Claimed]()
    claim = threading.Thread(
        target=lambda: claims.extend(patient.claims.take(worker, slices, limit=5, counted=counted)), daemon=True
    )
    holder = world.connect()
    try:
        holder.execute("begin immediate" if world.backend == "sqlite" else "select * from todoku_queue for update")
        began = time.monotonic()
        claim.start()
        if world.backend == "postgres":
            world.until_blocked()
        time.sleep(0.5)  # how long the lock is held is what the test is about
        held = time.monotonic() - began
        holder.rollback()
    finally:
        holder.close()
    claim.join(60)
    assert len(claims) == 2
    assert 0 < patient.claims.seconds < held


def test_places_of_one_priority_take_turns(world: World) -> None:
    """Claim: a destination with an endless supply does not starve its neighbours."""
    clock = Clock()
    claims, _ = claiming(world, clock, to="abc")
    for name in "abc":
        world.publish(20, to=[name])
    for _ in range(4):
        assert {claim.destination for _ in range(3) for claim in claims.claim(2)} == {"a", "b", "c"}


def test_a_larger_priority_has_no_turn_to_wait_for(world: World) -> None:
    """Claim: turns are taken within a priority only."""
    clock = Clock()
    claims, _ = claiming(world, clock, to="abc")
    for name in "abc":
        world.publish(5, to=[name])
        world.publish(5, to=[name], priority=9)
    assert [claim.priority for _ in range(10) for claim in claims.claim(3)] == [9] * 15 + [0] * 15


def test_a_worker_asks_only_for_what_it_has_registered_and_finds_its_lanes_and_suspects(world: World) -> None:
    """§2, H6, I10: the same for the three kinds of claims."""
    worker = world.worker()
    for name in ("mine", "others"):
        world.publish(2, to=[name])
        world.publish(2, to=[name], ordered=True, key="k")
    world.claim(worker, limit=100)
    world.store.leases.end(worker, lost=True)
    world.publish(2, to=["mine", "others"])
    claims = ClaimCursor(world.store, world.worker(), ["mine"], monotonic=Clock())
    rows = claims.claim(10) + claims.claim(10)
    lanes = claims.claim_lanes(lanes=5, limit=10) + claims.claim_lanes(lanes=5, limit=10)
    suspects = claims.claim_suspect() + claims.claim_suspect() + claims.claim_suspect()
    assert [claim.destination for claim in rows + lanes + suspects] == ["mine"] * 6
    assert [(claim.lane is None, claim.lost) for claim in rows] == [(True, 0)] * 2
    assert [(claim.lane is None, claim.lost) for claim in lanes] == [(False, 0)] * 2
    assert [(claim.lane is None, claim.lost) for claim in suspects] == [(True, 1)] * 2


# -------------------------------------------------------------------------- a million rows that cannot run


def work_of(world: World, query: str, call: Callable[[Any], Any]) -> int:
    """How much a query has to do: pages of PostgreSQL touched, or instructions of SQLite's machine."""
    database = world.store.database
    if isinstance(database, PostgresDatabase):
        explained = f"explain (analyze, buffers, format json) {database._restyled[query]}"
        with patch.dict(database._restyled, {query: explained}):
            (((plan,),),) = database.write("claim", call)
        return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
    assert isinstance(database, SqliteDatabase)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = world.connect()
    try:
        connection.set_progress_handler(step, 1)
        call(SqliteTx(connection, database._scripts, database.now() or 0))
        connection.set_progress_handler(None, 0)
        connection.commit()
    finally:
        connection.close()
    return steps


def work_of_claim(world: World, worker: UUID, part: Slice) -> int:
    return work_of(world, "claim", lambda tx: world.store.database.claim(tx, worker, [part], 5))


def work_of_looking(world: World) -> int:
    return work_of(world, "waiting", lambda tx: tx.rows("waiting", destinations=["live", "stale"]))


def insert_many(world: World, number: int, place: str, *, at: float, expires: float | None = None) -> None:
    """Rows made by the database itself, around `at` seconds from now; nobody will ask for their messages."""
    if world.backend == "sqlite":
        now = int(world.store.ping() * 1e6)
        series = f"(with recursive s(n) as (select 1 union all select n + 1 from s where n < {number}) select n from s)"
        moment, due = f"{now}", f"{now} + {round(at * 1e6)} + n"
        late = f"{now} + {round(expires * 1e6)}" if expires is not None else "9223372036854775807"
    else:
        series = f"generate_series(1, {number}) s(n)"
        moment, due = "todoku_now()", f"todoku_now() + make_interval(secs => {at}) + n * interval '1 microsecond'"
        late = f"todoku_now() + make_interval(secs => {expires})" if expires is not None else "'infinity'"
    world.sql(
        "insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at,"
        f" expires_at, updated_at) select -n, '{place}', '{place}', 0, 'pending', 6, {due}, {late}, {moment}"
        f" from {series}"
    )


def fill(world: World) -> None:
    """A million rows that cannot run now: older than everything that can, or in the same place but in the future."""
    for place in ("paused", "open", "unregistered"):
        insert_many(world, 200_000, place, at=-86_400)
    insert_many(world, 200_000, "live", at=86_400)
    insert_many(world, 200_000, "stale", at=-86_400, expires=-60)
    world.store.queues.pause("paused", SOMEBODY, paused=True)
    world.store.limits.set_breaker("open", open_for=3600)


@pytest.mark.slow
def test_a_million_rows_that_cannot_run_cost_the_rest_nothing(world: World) -> None:
    """H20, H24: paused, breaker open, not registered, expired, future. Measured in work, not in time."""
    worker = world.worker(lease=3600)
    world.publish(100, to=["live", "stale"])
    position = world.store.ping() - 3600

    def works() -> dict[str, int]:
        return {
            "looking": work_of_looking(world),
            "full": work_of_claim(world, worker, Slice("live", "live", 0)),
            "positioned": work_of_claim(world, worker, Slice("live", "live", 0, after_at=position)),
            "past the expired": work_of_claim(world, worker, Slice("stale", "stale", 0, after_at=position)),
            "paused": work_of_claim(world, worker, Slice("paused", "paused", 0)),
            "open": work_of_claim(world, worker, Slice("open", "open", 0)),
            "no lease": work_of_claim(world, UUID(int=1), Slice("live", "live", 0)),
        }

    without = works()
    fill(world)
    amid = works()
    world.sql("update todoku_delivery set status = 'aborted' where message_seq > 0 and status = 'pending'")
    amid["nothing due"] = work_of_claim(world, worker, Slice("live", "live", 0))
    # The first claim of a connection reads catalogs, too, and compiles the function that looks for lists: 240 pages
    # without any of the rows. Reading a part of them would be thousands.
    few = 350 if world.backend == "postgres" else 3000
    assert len(world.store.leases.owned(worker)) == 30
    assert {name: work for name, work in amid.items() if work > few} == {}, (without, amid)


def test_the_plan_of_a_claim_on_sqlite_is_the_index_of_due_rows_and_no_scan(sqlite_url: str) -> None:
    """H20: named in the query, so that no statistics can change it."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    database = world.store.database
    assert isinstance(database, SqliteDatabase)
    connection = world.connect()
    for statement in database._scripts["claim"]:
        values = dict.fromkeys(("worker", "queue", "destination", "priority", "after_at", "after_id", "most", "now"), 0)
        plan = [row[3] for row in connection.execute(f"explain query plan {statement}", values)]
        scans = {line for line in plan if line.startswith("SCAN") and "(subquery" not in line}  # the rows it has found
        assert scans <= {"SCAN CONSTANT ROW"}
        bounds = "todoku_delivery_due (queue=? AND destination=? AND priority=? AND next_run_at>? AND next_run_at<?)"
        assert any(bounds in line for line in plan)
        assert not any("TEMP B-TREE" in line for line in plan)
    connection.close()
    world.close()
