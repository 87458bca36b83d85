"""What was recorded is read back: numbers over time, and acts of people, at a bounded cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.world import SOMEBODY, World, failed
from todoku.store import statistics
from todoku.store.columns import moment

ENDED = 30_000


def whole_hour(world: World) -> datetime:
    return moment(world.store.ping()).replace(minute=0, second=0, microsecond=0)


def ended_each(world: World, start: datetime, seconds: float) -> None:
    """History of many deliveries, one every so many seconds from `start` on."""
    columns = "finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count"
    if world.backend == "sqlite":
        first, step = int(start.timestamp() * 1e6), int(seconds * 1e6)
        numbers = f"with recursive n(n) as (select 0 union all select n + 1 from n where n < {ENDED - 1})"
        rows = f"select {first} + n * {step}, n, 1, n, 'd', 'd', 1, 0 from n"
        world.sql(f"insert into todoku_history ({columns}) {numbers} {rows}")
    else:
        at = f"timestamptz '{start.isoformat()}' + n * interval '{seconds} seconds'"
        numbers = f"generate_series(0, {ENDED - 1}) n"
        world.sql(f"insert into todoku_history ({columns}) select {at}, n, 1, n, 'd', 'd', 1, 0 from {numbers}")
        world.sql("analyze todoku_history")


def test_what_ended_is_counted_where_it_ended(world: World) -> None:
    worker = world.worker(lease=10 * 3600)
    start = whole_hour(world)
    world.advance(start.timestamp() + 3600 - world.store.ping())  # the next hour has just begun
    for number in (3, 1):
        world.publish(number + 1)
        claims = world.claim(worker)
        world.settle(claims[:number])
        world.settle(claims[number:], failed(delay=86_400))
        world.advance(120)
    hour = start + timedelta(hours=1)
    found = world.store.statistics.series(since=hour, until=hour + timedelta(minutes=5), width=60)
    assert [(point.succeeded, point.failed) for point in found.points] == [(3, 1), (0, 0), (1, 1), (0, 0), (0, 0)]
    assert [point.at for point in found.points] == [hour + timedelta(minutes=n) for n in range(5)]
    assert found.exact
    (hourly,) = world.store.statistics.series(since=hour, until=hour + timedelta(hours=1), width=3600).points
    assert (hourly.succeeded, hourly.failed) == (4, 2)


def test_of_very_many_some_stand_for_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting ten million rows for a chart would not be cheap: a sample says so, and is about right."""
    start = datetime(2026, 1, 2, tzinfo=UTC)
    ended_each(world, start, 2.88)  # all day long
    span = {"since": start, "until": start + timedelta(days=1), "width": 3600}
    exact = world.store.statistics.series(**span)  # type: ignore[arg-type]
    assert exact.exact
    assert {point.succeeded for point in exact.points} == {ENDED // 24}
    monkeypatch.setattr(statistics, "SERIES_EXACTLY", 3000)
    sampled = world.store.statistics.series(**span)  # type: ignore[arg-type]
    assert not sampled.exact
    assert 0.5 * ENDED < sum(point.succeeded for point in sampled.points) < 2 * ENDED


def test_acts_of_people_are_found_by_who_what_and_whom(world: World) -> None:
    for name in ("a", "b"):
        world.store.queues.pause(name, SOMEBODY, paused=True)
    world.store.queues.pause("b", SOMEBODY, paused=False)
    audit = world.store.audit.page
    assert [(one.act.action, one.act.target) for one in audit()] == [
        ("resume", "queue:b"), ("pause", "queue:b"), ("pause", "queue:a"),
    ]  # fmt: skip
    newest, *rest = audit()
    assert audit(before=newest.id) == tuple(rest)
    assert len(audit(action="pause")) == len(audit(target="queue:b")) == 2
    assert len(audit(by="somebody", limit=1)) == 1
    assert audit(by="nobody") == ()


def test_what_changes_no_row_is_recorded_too(world: World) -> None:
    """A bulk act's start and end, for example: one audit row for each target."""
    world.store.audit.record(SOMEBODY, "start replay of 3", ["act:1", "act:2"])
    rows = [row.act for row in world.store.audit.page(action="start replay of 3")]
    assert [(row.by, row.why, row.target) for row in rows] == [
        (SOMEBODY.by, SOMEBODY.why, "act:2"),
        (SOMEBODY.by, SOMEBODY.why, "act:1"),
    ]
