"""Acts of a person in batches (engine/operations.py): each delivery once, bounded, paced, and told of as it goes."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.errors import InvalidAct, NoSuchMessage
from todoku.core.identity import key_hash
from todoku.engine import operations
from todoku.engine.deliveries import resolve
from todoku.store.deliveries import Filter

HOUR = 3600.0
DAY = 86_400.0


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five at a time, so that a few deliveries are many batches."""
    monkeypatch.setattr(operations, "BATCH", 5)


def dead(world: World, number: int, reason: str = "REFUSED", **options: object) -> list[int]:
    world.publish(number, **options)
    claims = world.claim(world.worker(lease=HOUR), limit=number)
    world.settle(claims, aborted(reason))
    return [claim.id for claim in claims]


def test_a_replay_of_many_goes_in_batches_and_tells_how_far_it_is(world: World) -> None:
    ids, told = dead(world, 12), []
    assert operations.replay(world.store, Filter(), SOMEBODY, progress=told.append) == operations.Replayed(12, 12, {})
    assert told == [5, 10, 12]
    assert {row.id: row.status for row in world.deliveries()} == dict.fromkeys(ids, "pending")
    assert world.sql("select count(*) from todoku_audit where action = 'replay'") == [(12,)]


def test_the_limit_is_of_all_batches_together(world: World) -> None:
    ids = dead(world, 12)
    done = operations.replay(world.store, Filter(reason="REFUSED"), SOMEBODY, limit=7)
    assert (done.replayed, [row.id for row in world.deliveries(status="pending")]) == (7, ids[:7])


def test_a_dry_run_counts_all_of_them_and_changes_none(world: World) -> None:
    dead(world, 12)
    before = world.deliveries()
    assert operations.replay(world.store, Filter(), SOMEBODY, dry_run=True, rate=1).replayed == 12
    assert operations.purge(world.store, Filter(), SOMEBODY, dry_run=True).changed == 12
    assert operations.settle(world.store, Filter(), SOMEBODY, succeeded=True, dry_run=True).changed == 12
    assert world.deliveries() == before


def test_a_rate_holds_for_the_whole_of_it(world: World) -> None:
    """20/s: the last of 30 is not before a second after the first; a rate below one waits too."""
    dead(world, 30)
    start = time.monotonic()
    assert operations.replay(world.store, Filter(), SOMEBODY, rate=20).replayed == 30
    assert time.monotonic() - start >= 1.0
    dead(world, 2, to=["mail"])
    start = time.monotonic()
    operations.replay(world.store, Filter(destination="mail"), SOMEBODY, rate=0.8)
    assert time.monotonic() - start >= 1.2


def test_cancelling_what_runs_ends(world: World) -> None:
    """What is asked to stop is still `sending` afterwards: each delivery is looked at once all the same."""
    world.publish(12)
    world.claim(world.worker(lease=HOUR))
    assert operations.cancel(world.store, Filter(), SOMEBODY) == operations.ActResult(12, 12, {})
    assert {row.cancel_requested for row in world.deliveries()} == {True}


def test_what_was_passed_over_is_counted_over_all_batches(world: World) -> None:
    ids = dead(world, 7)
    world.publish(4)
    waiting = [row.id for row in world.deliveries(status="pending")]
    done = operations.replay(world.store, Filter(ids=(*ids, *waiting, 998, 999)), SOMEBODY)
    assert (done.matched, done.replayed) == (11, 7)
    assert done.skipped == {"is pending": 4, "not found, or being changed by somebody else": 2}


def test_ids_are_numbers_or_messages(world: World) -> None:
    (message,) = world.publish(to=["a", "b", "c"])
    claims = world.claim(world.worker(lease=HOUR), destinations=["a"])
    world.settle(claims)
    both = {row.id for row in world.deliveries()}
    assert set(resolve(world.store, [message.id])) == both
    assert set(resolve(world.store, [str(message.id), *both, 77, "78"])) == {*both, 77, 78}
    with pytest.raises(NoSuchMessage, match="there is no message"):
        resolve(world.store, [uuid4()])
    for nonsense in ("seven", "", "0", 0, -1, 1 << 63, "9" * 30):
        with pytest.raises(InvalidAct):
            resolve(world.store, [nonsense])


def test_settling_by_hand_keeps_the_result_and_tells_the_ledger_first(world: World) -> None:
    """I5."""
    world.publish(idempotency_key="u7")
    (row,) = world.deliveries()
    done = operations.settle(world.store, Filter(ids=(row.id,)), SOMEBODY, succeeded=True, result='{"n":1}')
    assert done.changed == 1
    assert world.store.deliveries.result(row.id) == '{"n":1}'
    entry = world.store.ledger.entry("effect:warehouse", key_hash("u7"))
    assert entry is not None
    assert (entry.state, entry.response) == ("succeeded", '{"n":1}')
    with pytest.raises(InvalidAct, match="only a success has a result"):
        operations.settle(world.store, Filter(ids=(row.id,)), SOMEBODY, succeeded=False, result="1")


@pytest.mark.parametrize("status", ["pending", "failed", "aborted", "succeeded"])
def test_clear_removes_what_is_in_a_state_and_nothing_else(world: World, status: str) -> None:
    dead(world, 7)
    world.publish(21)
    claims = world.claim(world.worker(lease=HOUR), limit=15)
    world.settle(claims[:7])
    world.settle(claims[7:14], failed(delay=60))
    before = {
        name: world.store.statistics.counts().of(name)
        for name in ("pending", "sending", "failed", "aborted", "succeeded")
    }
    assert before == {"pending": 6, "sending": 1, "failed": 7, "aborted": 7, "succeeded": 7}
    number = before[status]
    told: list[int] = []
    done = operations.clear(world.store, status, SOMEBODY, progress=told.append)  # type: ignore[arg-type]
    assert (done.changed, told[-1], len(told) > 1) == (number, number, True)
    after = {name: world.store.statistics.counts().of(name) for name in before}
    assert after == {**before, status: 0}
    assert world.sql("select count(*) from todoku_audit where by = 'somebody' and why = 'a test'") != [(0,)]


def test_clear_goes_by_topic_and_age(world: World) -> None:
    for topic in ("order.created", "order.paid"):
        world.publish(7, topic=topic)
    world.settle(world.claim(world.worker(lease=HOUR), limit=100))
    world.advance(10 * DAY)
    world.publish(2, topic="order.paid")
    world.settle(world.claim(world.worker(lease=HOUR)))
    dry = operations.clear(world.store, "succeeded", SOMEBODY, topic="order.paid", older_than=DAY, dry_run=True)
    assert (dry.changed, world.store.statistics.counts().succeeded) == (7, 16)
    assert operations.clear(world.store, "succeeded", SOMEBODY, topic="order.paid", older_than=DAY).changed == 7
    assert world.store.statistics.counts().succeeded == 9
    assert sorted(str(row.topic) for row in world.history()) == ["order.created"] * 7 + ["order.paid"] * 2
    assert operations.clear(world.store, "succeeded", SOMEBODY, older_than=30 * DAY).changed == 0


def test_clearing_a_success_removes_all_of_it_but_its_key(world: World) -> None:
    """I5: a repetition still finds what was done; what else a message is on its way to stays."""
    world.publish(1, to=["a", "b"], idempotency_key="u7")
    world.settle(world.claim(world.worker(lease=HOUR), destinations=["a"]))
    assert operations.clear(world.store, "succeeded", SOMEBODY).changed == 1
    assert world.sql("select count(*) from todoku_message") == [(1,)]
    world.settle(world.claim(world.worker(lease=HOUR)))
    assert operations.clear(world.store, "succeeded", SOMEBODY).changed == 1
    for table in ("message", "history", "result", "attempt", "delivery"):
        assert world.sql(f"select count(*) from todoku_{table}") == [(0,)], table
    (again,) = world.publish(1, to=["a", "b"], idempotency_key="u7")
    assert again.duplicate


def test_a_limit_is_for_whatever_has_the_name(world: World) -> None:
    world.publish(to=["http"], queue="mail")
    world.store.destinations.announce(["http", "both"])
    world.publish(to=["other"], queue="both")
    assert operations.limit(world.store, "http", SOMEBODY, rate=1.0) == "destination"
    assert operations.limit(world.store, "mail", SOMEBODY, rate=1.0) == "queue"
    assert operations.limit(world.store, "both", SOMEBODY, rate=1.0) == "queue"
    assert operations.limit(world.store, "yet to come", SOMEBODY, rate=1.0, dry_run=True) == "queue"
    assert operations.limit(world.store, "both", SOMEBODY, of="destination", rate=1.0) == "destination"
    assert [limit.name for limit in world.store.limits.read().queues] == ["both", "mail"]
    assert [limit.name for limit in world.store.limits.read().destinations] == ["both", "http"]
    for wrong in ({"concurrency": 0}, {"rate": 0.0}, {"rate": -1.0}):
        with pytest.raises(InvalidAct, match="a limit is at least one"):
            operations.limit(world.store, "mail", SOMEBODY, **wrong)  # type: ignore[arg-type]


def test_releasing_what_the_dead_held_is_audited_and_changes_nothing_twice(world: World) -> None:
    world.publish(3)
    worker = world.worker(lease=5)
    world.claim(worker)
    assert operations.release_expired(world.store, SOMEBODY, max_lost=3) == operations.ActResult(0, 0, {})
    world.advance(6)
    assert operations.release_expired(world.store, SOMEBODY, max_lost=3, dry_run=True) == operations.ActResult(1, 3, {})
    assert operations.release_expired(world.store, SOMEBODY, max_lost=3) == operations.ActResult(1, 3, {})
    assert operations.release_expired(world.store, SOMEBODY, max_lost=3) == operations.ActResult(0, 0, {})
    audit = world.sql("select by, action, target, why from todoku_audit")
    assert audit == [("somebody", "release-expired", f"worker:{worker}", "a test")]
