"""The numbers of the dashboard, each at a bounded cost: rates over time, what ended last, depths of queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.world import World, aborted, failed
from todoku.core.decision import SUCCEEDED
from todoku.core.limit import Limit
from todoku.core.message import Claimed
from todoku.core.outcome import DONE
from todoku.store import depths, rates
from todoku.store.claims import Transacted
from todoku.store.columns import moment
from todoku.store.rates import FlowPoint, Flows

HOUR = 3600.0


def settle_timed(world: World, claims: list[Claimed], run_ms: int) -> None:
    """As a worker that has measured how long each attempt ran."""
    world.store.claims.settle([(claim, SUCCEEDED) for claim in claims], {claim.id: run_ms for claim in claims})


def this_minute(world: World) -> Flows:
    """The present minute and the one before it."""
    begins = int(world.store.ping() // 60) * 60
    return world.store.rates.flows(since=moment(begins - 60), until=moment(begins + 60), width=60)


def total(flows: Flows, name: str) -> int:
    return sum(getattr(point, name) for point in flows.points)


# ------------------------------------------------------------------------------------------------------ run times


def test_the_run_time_is_kept_with_the_success(world: World) -> None:
    world.publish(2)
    one, other = world.claim(world.worker())
    settle_timed(world, [one], 1234)
    world.settle([other])
    assert world.sql("select delivery_id, run_ms from todoku_history order by 1") == [(one.id, 1234), (other.id, None)]


def test_a_run_time_beyond_the_column_is_unknown_and_the_fence_holds(world: World) -> None:
    """I3: the run time shares a number with the epoch, and must not change it."""
    world.publish(3)
    huge, none, stale = world.claim(world.worker())
    world.store.claims.release([stale])
    report = world.store.claims.settle(
        [(claim, SUCCEEDED) for claim in (huge, none, stale)], {huge.id: 1 << 40, none.id: 0, stale.id: 7}
    )
    assert [claim.id for claim in report.lost] == [stale.id]
    assert dict(world.sql("select delivery_id, run_ms from todoku_history")) == {huge.id: None, none.id: 0}
    assert [epoch for (epoch,) in world.sql("select epoch from todoku_history order by delivery_id")] == [
        huge.epoch, none.epoch,
    ]  # fmt: skip


def test_a_failed_attempt_keeps_its_run_time_and_whether_it_was_the_last(world: World) -> None:
    world.publish(2)
    again, dead = world.claim(world.worker())
    world.store.claims.settle([(again, failed()), (dead, aborted())], {again.id: 20, dead.id: 30})
    kept = world.sql("select delivery_id, run_ms, final from todoku_attempt order by 1")
    assert [(id, run, bool(final)) for id, run, final in kept] == [(again.id, 20, False), (dead.id, 30, True)]


def test_a_transactional_handler_is_timed(world: World) -> None:
    world.publish()
    (claim,) = world.claim(world.worker())
    assert world.store.claims.transact(claim, lambda _: DONE, limit=10) is Transacted.SETTLED
    ((run_ms,),) = world.sql("select run_ms from todoku_history")
    assert run_ms is not None


# ---------------------------------------------------------------------------------------------------------- rates


def test_what_arrives_and_ends_is_counted_by_minute(world: World) -> None:
    worker = world.worker()
    world.publish(5)
    world.publish(1, to=("mail",))
    claims = world.claim(worker)
    world.settle(claims[:3])
    world.settle(claims[3:4], failed(delay=HOUR))
    world.settle(claims[4:5], aborted())
    found = this_minute(world)
    numbers = {name: total(found, name) for name in ("arrived", "succeeded", "retried", "failed")}
    assert numbers == {"arrived": 6, "succeeded": 3, "retried": 1, "failed": 1}
    assert found.exact
    assert sum(sum(place.succeeded) for place in found.places) == 3


def test_an_empty_database_has_empty_minutes(world: World) -> None:
    found = this_minute(world)
    assert [point for point in found.points if point != FlowPoint(point.at, 0, 0, 0, 0)] == []
    assert (len(found.points), found.places, found.exact) == (2, (), True)


def test_arrivals_are_counted_also_when_everything_has_ended(world: World) -> None:
    """The ids of deliveries are drawn in order: their distance is their number, wherever they are now."""
    began = world.store.ping()
    world.publish(4)
    world.settle(world.claim(world.worker()))
    assert world.store.rates.arrived(since=began - 5, until=began + 60) == 4
    assert world.store.rates.arrived(since=began - 60, until=began - 30) == 0


def test_very_many_failures_are_estimated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_FAILED", 5)
    start = datetime(2026, 1, 2, tzinfo=UTC)
    for second in range(60):
        at = start + timedelta(seconds=second)
        text = f"'{at.isoformat()}'" if world.backend == "postgres" else str(round(at.timestamp() * 1e6))
        world.sql(
            "insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason)"
            f" values ({second}, 0, 1, 1, {text}, 'TIMEOUT')"
        )
    found = world.store.rates.flows(since=start, until=start + timedelta(minutes=2), width=60)
    assert not found.exact
    assert found.points[0].retried == pytest.approx(60, rel=0.3)
    assert found.points[1].retried == 0


def test_very_many_successes_are_sampled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_COUNTED", 100)
    monkeypatch.setattr(rates, "_PICKED", 200)
    start = datetime(2026, 1, 2, tzinfo=UTC)
    number = 20_000
    if world.backend == "sqlite":
        numbers = f"with recursive n(n) as (select 0 union all select n + 1 from n where n < {number - 1})"
        at, of = f"{round(start.timestamp() * 1e6)} + n * 180000", "from n"
    else:
        numbers, at = "", f"timestamptz '{start.isoformat()}' + n * interval '180 milliseconds'"
        of = f"from generate_series(0, {number - 1}) n"
    columns = "finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count"
    world.sql(f"insert into todoku_history ({columns}) {numbers} select {at}, n, 1, n, 'd' || (n % 2), 'q', 1, 0 {of}")
    if world.backend == "postgres":
        world.sql("analyze todoku_history")
    found = world.store.rates.flows(since=start, until=start + timedelta(hours=1), width=600)
    assert not found.exact
    assert total(found, "succeeded") == pytest.approx(number, rel=0.5)
    assert {place.destination for place in found.places} == {"d0", "d1"}


# -------------------------------------------------------------------------------------------------------- samples


def test_what_succeeded_last_comes_first(world: World) -> None:
    worker = world.worker()
    for name in ("a", "b", "c"):
        world.publish(to=(name,))
        settle_timed(world, world.claim(worker), 50)
    found = world.store.samples.successes(most=2)
    assert [one.destination for one in found] == ["c", "b"]
    assert [(one.queue, one.run) for one in found] == [("c", 0.05), ("b", 0.05)]
    assert all(one.created_at is not None and one.created_at <= one.finished_at for one in found)


def test_of_a_long_history_only_the_end_is_read(world: World) -> None:
    worker = world.worker()
    for _ in range(4):
        world.publish(300, to=("old",))
        world.settle(world.claim(worker, limit=300))
    world.publish(10, to=("new",))
    world.settle(world.claim(worker, limit=300))
    found = world.store.samples.successes(most=100)
    assert len(found) == 100
    assert [one.destination for one in found].count("new") == 10


def test_failures_name_the_destination_also_after_a_success(world: World) -> None:
    worker, began = world.worker(), moment(world.store.ping() - 1)
    world.publish(to=("mail",))
    (claim,) = world.claim(worker)
    world.store.claims.settle([(claim, failed("HTTP_5XX"))], {claim.id: 70})
    (waiting,) = world.store.samples.failures(since=began, most=10)
    assert (waiting.destination, waiting.reason, waiting.run, waiting.final) == ("mail", "HTTP_5XX", 0.07, False)
    world.settle(world.claim(worker))
    (done,) = world.store.samples.failures(since=began, most=10)
    assert (done.queue, done.destination) == ("mail", "mail")
    assert world.store.samples.failures(since=moment(world.store.ping() + 60), most=10) == ()


# --------------------------------------------------------------------------------------------------------- depths


def test_depths_tell_what_is_due_from_what_waits(world: World) -> None:
    world.publish(3, to=("mail",))
    world.publish(2, to=("mail",), delay=HOUR)
    world.publish(2, to=("ordered",), ordered=True, key="k")
    world.publish(1, to=("gated",), per_key=Limit(concurrency=1), key="k")
    world.advance(60)
    found = {depth.queue: depth for depth in world.store.depths.queues()}
    assert {name: (depth.due, depth.later, depth.exact) for name, depth in found.items()} == {
        "mail": (3, 2, True), "ordered": (2, 0, True), "gated": (1, 0, True),
    }  # fmt: skip
    assert all(60 <= depth.oldest < HOUR for depth in found.values())


def test_depths_stop_counting_and_say_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "_COUNTED", 0)
    monkeypatch.setattr(depths, "_LEAST", 5)
    world.publish(9, to=("mail",))
    (found,) = world.store.depths.queues()
    assert (found.due, found.exact) == (5, False)


def test_what_runs_is_not_waiting(world: World) -> None:
    world.publish(3, to=("mail",))
    world.publish(1, to=("ordered",), ordered=True, key="k")
    worker = world.worker()
    world.claim(worker)
    world.claim_lanes(worker)
    assert {(one.due, one.later) for one in world.store.depths.queues()} <= {(0, 0)}
    assert [(one.queue, one.destination, one.number) for one in world.store.depths.running()] == [
        ("mail", "mail", 3), ("ordered", "ordered", 1),
    ]  # fmt: skip


def test_dead_letters_are_grouped_by_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(4)
    claims = world.claim(world.worker())
    world.settle(claims[:1], aborted("REFUSED"))
    world.settle(claims[1:], aborted("HTTP_4XX"))
    assert [(one.reason, one.number, one.newest) for one in world.store.depths.dead_reasons()] == [
        ("HTTP_4XX", 3, claims[-1].id), ("REFUSED", 1, claims[0].id),
    ]  # fmt: skip
    monkeypatch.setattr(depths, "DEAD", 3)
    assert [one.reason for one in world.store.depths.dead_reasons()] == ["HTTP_4XX"]
