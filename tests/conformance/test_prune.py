"""Retention: what is old goes, what anybody may still need stays, and nobody who works at the time loses anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.errors import DatabaseBusy
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.store.claims import SettleReport
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed
from todoku.store.retention import Pruned

HOUR = 3600.0
DAY = 24 * HOUR
MONTH = 30 * DAY
NOTHING = Pruned()


def prune(world: World, *, ttl: float = MONTH) -> Pruned:
    return world.store.retention.prune(history_ttl=ttl)


def count(world: World, table: str) -> int:
    return int(world.sql(f"select count(*) from todoku_{table}")[0][0])


def claim_all(world: World, lease: float = HOUR, limit: int = 1000) -> list[Claimed]:
    return world.claim(world.worker(lease=lease), limit=limit)


# --------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("status", ["pending", "failed", "sending", "aborted"])
def test_a_message_that_still_has_a_delivery_is_never_pruned(world: World, status: str) -> None:
    """I1, H17: whatever its age, and dead letters too; its payload is still there when it runs."""
    (message,) = world.publish(delay=1000 * DAY if status == "pending" else None, payload=lambda _: {"keep": "me"})
    claims = claim_all(world, lease=1000 * DAY)
    if status in ("failed", "aborted"):
        world.settle(claims, failed(delay=1000 * DAY) if status == "failed" else aborted())
    (before,) = world.deliveries()
    assert before.status == status
    world.advance(400 * DAY)

    gone = prune(world)
    assert (gone.messages, gone.attempts) == (0, 0)
    assert world.deliveries() == [before]
    story = world.store.messages.story(message.id)
    assert story is not None
    assert story.message.payload == '{"keep":"me"}'


def test_a_message_goes_once_its_last_delivery_is_done_and_it_is_old(world: World) -> None:
    """H17: fan-out: one of two deliveries is done long before the other."""
    (message,) = world.publish(to=("fast", "slow"))
    worker = world.worker(lease=1000 * DAY)
    world.settle(world.claim(worker, destinations=["fast"]))
    slow = world.claim(worker, destinations=["slow"])
    world.advance(40 * DAY)
    assert prune(world).messages == 0
    assert world.store.messages.story(message.id) is not None

    assert world.settle(slow) == SettleReport()
    assert prune(world).messages == 1
    assert world.store.messages.story(message.id) is None


def test_a_message_that_is_not_old_stays_though_it_is_done(world: World) -> None:
    (message,) = world.publish()
    world.settle(claim_all(world))
    world.advance(29 * DAY)
    assert prune(world) == NOTHING
    assert world.store.messages.story(message.id) is not None
    world.advance(2 * DAY)
    assert prune(world).messages == 1


def test_a_purged_dead_letter_gives_its_message_up(world: World) -> None:
    """I9: until a person removes it, it stays; then the message goes like any other."""
    world.publish()
    world.settle(claim_all(world), aborted())
    world.advance(40 * DAY)
    assert prune(world).messages == 0
    world.store.acts.purge(Filter(), SOMEBODY)
    assert prune(world).messages == 1


def test_old_messages_behind_one_that_must_stay_are_pruned_too(world: World) -> None:
    """Prune works in small transactions and walks on past what it has to leave."""
    world.publish(30)
    claims = claim_all(world)
    world.settle([claim for place, claim in enumerate(claims) if place % 10 != 0])
    world.settle([claim for place, claim in enumerate(claims) if place % 10 == 0], aborted())
    world.advance(40 * DAY)
    assert world.store.retention.prune(history_ttl=MONTH, limit=4).messages == 27
    assert count(world, "message") == len(world.deliveries()) == 3


# ------------------------------------------------------------------------------------- by age, the rest


def test_attempts_results_inbox_and_history_go_by_age(world: World) -> None:
    """DESIGN §5: each table has its retention; nothing younger is touched."""
    world.publish(max_attempts=5)
    world.settle(claim_all(world), failed())
    world.settle(claim_all(world), Settlement(status=Status.SUCCEEDED, result="1"))
    clock = "todoku_now()" if world.backend == "postgres" else str(round(world.store.ping() * 1e6))
    world.sql(
        "insert into todoku_inbox (consumer, message_id, seen_at)"
        f" values ('points', '018f0000-0000-7000-8000-000000000000', {clock})"
    )
    world.advance(29 * DAY)
    assert prune(world) == NOTHING
    assert [count(world, table) for table in ("attempt", "result", "history", "inbox")] == [1, 1, 1, 1]

    world.advance(3 * DAY)
    gone = prune(world)
    assert (gone.attempts, gone.results, gone.inbox) == (1, 1, 0)
    assert gone.history >= 1
    assert [count(world, table) for table in ("attempt", "result", "history", "inbox")] == [0, 0, 0, 1]
    world.advance(59 * DAY)
    assert prune(world).inbox == 1
    assert prune(world) == NOTHING


def test_the_attempts_of_a_delivery_that_is_still_there_stay(world: World) -> None:
    """I4: nothing is forgotten of what can run again."""
    (message,) = world.publish()
    world.settle(claim_all(world), aborted())
    world.advance(400 * DAY)
    assert prune(world).attempts == 0
    story = world.store.messages.story(message.id)
    assert story is not None
    assert len(story.attempts) == 1


def test_the_audit_is_never_pruned(world: World) -> None:
    """DESIGN §5: append-only."""
    world.publish()
    world.store.acts.cancel(Filter(), SOMEBODY)
    world.store.acts.purge(Filter(), SOMEBODY)
    world.advance(4000 * DAY)
    prune(world)
    assert count(world, "audit") == 3  # the cancellation, and the purge of the delivery and so of its message


# ----------------------------------------------------------------------------------- history partitions


@pytest.fixture
def ward(postgres_url: str) -> Iterator[World]:
    """A world on PostgreSQL, where the history has partitions."""
    world = World("postgres", postgres_url)
    yield world
    world.close()


def partitions(world: World) -> list[str]:
    """The days that have a partition."""
    rows = world.sql(
        "select right(relname, 8) from pg_inherits join pg_class on pg_class.oid = inhrelid"
        " where inhparent = 'todoku_history'::regclass and relname <> 'todoku_history_default' order by 1"
    )
    return [day for (day,) in rows]


def days(world: World, *offsets: int) -> list[str]:
    return [
        world.sql(f"select to_char((todoku_now() at time zone 'UTC')::date + {offset}, 'YYYYMMDD')")[0][0]
        for offset in offsets
    ]


def drop_partitions(world: World) -> None:
    for day in partitions(world):
        world.sql(f"drop table todoku_history_{day}")


@pytest.mark.postgres
def test_migrate_makes_partitions_for_today_and_the_week_ahead(ward: World) -> None:
    drop_partitions(ward)
    before = days(ward, *range(8))
    ward.store.migrate()
    assert partitions(ward) in (before, days(ward, *range(8))), "midnight may have come in between"


@pytest.mark.postgres
def test_prune_makes_the_partitions_of_the_days_to_come_and_drops_the_old_ones(ward: World) -> None:
    """DESIGN §5: dropped, not deleted; and a maintainer that only ever prunes is enough."""
    ward.publish(2)
    ward.settle(claim_all(ward))
    before = partitions(ward)
    ward.advance(40 * DAY)
    week = days(ward, *range(8))

    gone = prune(ward)
    assert gone.history == len(before)
    assert gone.stray == 0
    assert partitions(ward) in (week, days(ward, *range(8))), "midnight may have come in between"
    assert ward.history() == []
    ward.publish()
    ward.settle(claim_all(ward))
    assert (len(ward.history()), prune(ward).stray) == (1, 0)


@pytest.mark.postgres
def test_a_partition_that_ends_within_the_retention_stays(ward: World) -> None:
    """History of the day on which the retention ends is still partly young."""
    ward.publish()
    ward.settle(claim_all(ward))
    ward.advance(MONTH - HOUR)
    prune(ward)
    assert len(ward.history()) == 1


@pytest.mark.postgres
def test_a_missing_partition_does_not_fail_a_settle_and_is_reported(ward: World) -> None:
    """H27: the row goes to the default partition, and prune raises the alarm: `stray`."""
    drop_partitions(ward)
    ward.publish(3)
    claims = claim_all(ward)
    assert ward.settle(claims) == SettleReport()
    assert [(row.id, row.epoch) for row in ward.history()] == [(claim.id, claim.epoch) for claim in claims]
    assert ward.settle(claims) == SettleReport()  # the read-back finds them there, too (H4)

    assert prune(ward).stray == 3
    assert len(ward.history()) == 3
    ward.publish()
    assert ward.settle(claim_all(ward)) == SettleReport()  # the day whose rows have strayed is left without a partition
    ward.advance(40 * DAY)
    assert prune(ward).stray == 0
    assert ward.history() == []


@pytest.mark.postgres
def test_two_that_prune_at_once_do_not_make_a_partition_twice(ward: World) -> None:
    """DESIGN §5: every worker may be the maintainer."""
    drop_partitions(ward)
    stores = [ward.another_store(lock_timeout_sec=30) for _ in range(8)]
    start = threading.Barrier(8)

    def maintainer(number: int) -> Pruned:
        start.wait()
        return stores[number].retention.prune(history_ttl=MONTH)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(maintainer, range(8))) == [NOTHING] * 8
    assert len(partitions(ward)) == 8


# ------------------------------------------------------------------------------- while others are at work


@pytest.mark.postgres
def test_a_prune_that_is_not_committed_yet_holds_up_neither_settle_nor_replay(ward: World) -> None:
    """H17: prune has seen what it deletes; a replay and a settle of other rows come in between."""
    ward.publish(3)
    old, dead, running = claim_all(ward, lease=1000 * DAY)
    ward.settle([old])
    ward.settle([dead], aborted())
    ward.advance(40 * DAY)
    steps, reached, go_on = iter(range(100)), threading.Event(), threading.Event()

    def pause() -> None:
        if next(steps) == 2:  # the partitions are made, what was cancelled is gone, the messages are deleted
            reached.set()
            assert go_on.wait(30)

    with armed("prune.before_commit", pause), ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(ward.another_store(lock_timeout_sec=30).retention.prune, history_ttl=MONTH)
        assert reached.wait(30)
        assert ward.store.acts.replay(Filter(ids=(dead.id,)), SOMEBODY).changed == (dead.id,)
        assert ward.settle([running]) == SettleReport()
        go_on.set()
        assert pruning.result().messages == 1
    (again,) = claim_all(ward)
    assert (again.id, again.payload) == (dead.id, dead.payload)


@pytest.mark.slow
def test_prune_beside_settles_and_replays_loses_nothing(world: World) -> None:
    """H16, H17, I1: with no retention at all, prune takes whatever it may; nothing that can run loses its message."""
    number = 120
    over = threading.Event()
    maintaining = world.another_store(ledger_ttl=1e-6, lock_timeout_sec=60)

    def maintain() -> list[Pruned]:
        done = []
        while not over.is_set():
            done.append(maintaining.retention.prune(history_ttl=1e-6, limit=7))
        return done

    with ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(maintain)
        try:
            seen = run_all(world, number)
        finally:
            over.set()
        pruned = pruning.result()

    assert all(payload == f'{{"n":{place}}}' for place, payload in seen)
    assert len(seen) == number
    assert world.deliveries() == []
    assert sum(done.messages for done in pruned) > 0
    left = world.store.retention.prune(history_ttl=1e-6)
    assert sum(done.messages for done in pruned) + left.messages == number
    assert count(world, "message") == 0


def run_all(world: World, number: int) -> set[tuple[int, str | None]]:
    """Publish in small steps; of everything the first attempt is a dead letter, replayed, and the second succeeds."""
    store, seen = world.another_store(ledger_ttl=1e-6, lock_timeout_sec=60), set[tuple[int, str | None]]()
    worker = world.worker(lease=HOUR)
    places: dict[str, int] = {}
    for place in range(0, number, 4):
        drafts = [
            draft
            for each in range(place, place + 4)
            for draft in world.drafts(payload=lambda _, each=each: {"n": each}, idempotency_key=f"k{each}")
        ]
        for each, message in enumerate(store.run(world.steps(drafts)), place):
            assert not message.duplicate
            places[str(message.id)] = each
        first = world.claim(worker, store=store)
        store.claims.settle([(claim, aborted()) for claim in first])
        assert len(store.acts.replay(Filter(status="aborted"), SOMEBODY).changed) == 4
        second = world.claim(worker, store=store)
        assert {claim.message_id for claim in second} == {claim.message_id for claim in first}
        seen |= {(places[claim.message_id], claim.payload) for claim in second}
        assert store.claims.settle([(claim, SUCCEEDED) for claim in second]) == SettleReport()
    return seen


@pytest.mark.postgres
def test_a_reader_of_the_history_holds_up_prune_but_not_for_ever_the_settles(ward: World) -> None:
    """H11: dropping a partition needs a lock that settles need too; it is asked for with a timeout, and tried again."""
    ward.publish(2)
    first, second = claim_all(ward, lease=1000 * DAY)
    ward.settle([first])
    ward.advance(40 * DAY)
    ward.store.retention.prune(history_ttl=1000 * DAY)
    with psycopg.connect(ward.url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("select count(*) from todoku_history").fetchall()
        pruning = pool.submit(ward.another_store().retention.prune, history_ttl=MONTH)
        ward.until_blocked()
        patient = ward.another_store(lock_timeout_sec=30)
        assert patient.claims.settle([(second, SUCCEEDED)]) == SettleReport()
        with pytest.raises(DatabaseBusy):
            pruning.result()
        reader.rollback()
    assert prune(ward).stray == 0
    assert [row.id for row in ward.history()] == [second.id]
