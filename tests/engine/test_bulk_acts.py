"""Acts on many deliveries run beside their callers: counted first, with progress, a pace and a stop, all audited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

import todoku
from tests.support.world import World, aborted
from todoku.core.errors import InvalidAct, NotThere
from todoku.engine import bulk_acts
from todoku.engine.bulk_acts import BulkAct, BulkActs
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter

ADA = Signed("ada", "the receiver is back")
PATIENCE = 60.0


@pytest.fixture
def box(world: World, url: str) -> Iterator[todoku.App]:
    """An App on the world's database, with the world's clock."""
    box = todoku.App(url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


@pytest.fixture
def acts(box: todoku.App) -> BulkActs:
    return box.deliveries.bulk_acts


def bury(world: World, number: int, reason: str = "REFUSED") -> list[int]:
    """Publishes, and lets all of it become dead letters."""
    world.publish(number)
    claims = world.claim(world.worker(lease=3600), limit=number)
    world.settle(claims, aborted(reason))
    return sorted(claim.id for claim in claims)


def until(acts: BulkActs, act: BulkAct, done: int | None = None) -> BulkAct:
    """The act when it has ended, or when it has changed so many."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = acts.get(act.id)
        if now.has_ended or (done is not None and now.done >= done):
            return now
        assert time.monotonic() < deadline, now
        time.sleep(0.005)


def audited(world: World, id: object) -> list[tuple[str, str]]:
    rows = world.store.audit.page(target=f"act:{id}")
    return [(row.act.by, row.act.action) for row in reversed(rows)]


def test_a_filter_is_counted_and_then_replayed_to_its_end(world: World, acts: BulkActs) -> None:
    """I9: each delivery has its audit row as ever; the act has one for its start and one for its end."""
    refused, others = bury(world, 3), bury(world, 2, "BAD_PAYLOAD")
    which = Filter(reason="REFUSED")
    assert acts.preview("replay", which).number == 3
    assert len(world.deliveries(status="aborted")) == 5, "a preview changes nothing"
    act = until(acts, acts.start("replay", which, ADA))
    assert (act.state, act.done, act.total, act.skipped, act.error) == ("finished", 3, 3, {}, None)
    assert sorted(row.id for row in world.deliveries(status="pending")) == refused
    assert sorted(row.id for row in world.deliveries(status="aborted")) == others
    assert act.selected == ("reason:REFUSED",)
    assert audited(world, act.id) == [("ada", "start replay of 3"), ("ada", "end replay, finished: 3 of 3")]
    for id in refused:
        (row,) = world.store.audit.page(target=f"delivery:{id}", action="replay")
        assert (row.act.by, row.act.why) == (ADA.by, ADA.why)


def test_named_deliveries_that_it_does_not_apply_to_are_passed_over_and_counted(world: World, acts: BulkActs) -> None:
    dead = bury(world, 2)
    world.publish()
    (waiting,) = [row.id for row in world.deliveries(status="pending")]
    which = Filter(ids=(*dead, waiting))
    found = acts.preview("purge", which)
    assert (found.number, found.skipped) == (2, {"is pending": 1})
    act = until(acts, acts.start("purge", which, ADA))
    assert (act.state, act.done, act.skipped) == ("finished", 2, {"is pending": 1})
    assert [row.id for row in world.deliveries()] == [waiting]


def test_it_stops_between_batches_and_what_was_done_stays_done(world: World, acts: BulkActs) -> None:
    bury(world, 3)
    act = acts.start("replay", Filter(), ADA, rate=0.05)  # one, and the next after twenty seconds
    until(acts, act, done=1)
    acts.stop(act.id, Signed("bob", "wrong receiver"))
    ended = until(acts, act)
    assert (ended.state, ended.done, ended.total) == ("stopped", 1, 3)
    assert len(world.deliveries(status="aborted")) == 2
    assert audited(world, act.id) == [
        ("ada", "start replay of 3"),
        ("bob", "stop replay"),
        ("ada", "end replay, stopped: 1 of 3"),
    ]
    assert acts.stop(act.id, ADA) == ended, "to stop it once more changes nothing"


def test_with_a_limit_it_takes_the_oldest(world: World, acts: BulkActs) -> None:
    dead = bury(world, 4)
    assert acts.preview("purge", Filter(), limit=3).number == 3
    act = until(acts, acts.start("purge", Filter(), ADA, limit=3))
    assert (act.done, act.total, act.limit) == (3, 3, 3)
    assert [row.id for row in world.deliveries(status="aborted")] == dead[3:]


def test_what_dies_after_its_start_is_not_touched(
    world: World, acts: BulkActs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what it has replayed itself and died again: it would run in a circle."""
    monkeypatch.setattr(bulk_acts, "AT_ONCE", 0)
    before = bury(world, 2)
    act = acts.start("replay", Filter(), ADA)
    world.advance(10)
    after = bury(world, 1)
    acts._run()  # the thread's own work, now that something has changed
    assert acts.get(act.id).done == 2
    assert sorted(row.id for row in world.deliveries(status="pending")) == before
    assert [row.id for row in world.deliveries(status="aborted")] == after


def test_what_waits_is_cancelled_and_successes_run_again(world: World, acts: BulkActs) -> None:
    world.publish(2)
    act = until(acts, acts.start("cancel", Filter(), ADA))
    assert (act.state, act.done) == ("finished", 2)
    assert {row.reason for row in world.deliveries(status="aborted")} == {"CANCELLED"}
    world.publish(1)
    world.settle(world.claim(world.worker()))
    assert acts.preview("again", Filter()).number == 1
    act = until(acts, acts.start("again", Filter(), ADA))
    assert (act.state, act.done) == ("finished", 1)
    assert len(world.deliveries(status="pending")) == 1
    assert len(world.history()) == 1


def test_more_than_two_wait_for_their_turn_and_more_than_that_are_refused(
    world: World, acts: BulkActs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_acts, "MOST_WAITING", 1)
    bury(world, 6)
    running = [until(acts, acts.start("replay", Filter(), ADA, rate=0.05), done=1) for _ in range(2)]
    waiting = acts.start("replay", Filter(), ADA, rate=0.05)
    assert [act.state for act in acts.list()] == ["waiting", "running", "running"]
    with pytest.raises(InvalidAct, match="1 acts wait already") as caught:
        acts.start("replay", Filter(), ADA)
    assert caught.value.hint
    acts.stop(waiting.id, ADA)
    acts.stop(running[0].id, ADA)
    assert until(acts, waiting).done == 0, "its turn came, and it was stopped before"
    assert until(acts, running[0]).state == "stopped"
    assert acts.get(running[1].id).state == "running"


def test_when_the_process_ends_it_stops_between_batches_and_the_audit_says_how_far(
    world: World, box: todoku.App
) -> None:
    bury(world, 3)
    acts = box.deliveries.bulk_acts
    act = acts.start("replay", Filter(), ADA, rate=0.05)
    until(acts, act, done=1)
    box.close()
    assert acts.get(act.id).state == "stopped"
    assert audited(world, act.id)[-1] == ("ada", "end replay, stopped: 1 of 3")
    assert len(world.deliveries(status="aborted")) == 2
    with pytest.raises(InvalidAct, match="stopping"):
        acts._refuse_too_many()


def test_a_failure_ends_it_and_is_shown(world: World, acts: BulkActs, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(world, 1)

    def fail(*_: object, **__: object) -> None:
        raise InvalidAct("the database said no", hint="ask it")

    monkeypatch.setattr(bulk_acts.operations, "replay", fail)
    act = until(acts, acts.start("replay", Filter(), ADA))
    assert (act.state, act.done) == ("failed", 0)
    assert "the database said no" in (act.error or "")
    assert audited(world, act.id)[-1] == ("ada", "end replay, failed: 0 of 1")
    monkeypatch.setattr(bulk_acts.operations, "replay", lambda *_, **__: 1 / 0)
    act = until(acts, acts.start("replay", Filter(), ADA))
    assert act.error == "unexpected error ZeroDivisionError; the log has the details"


def test_only_so_many_ended_acts_are_remembered(world: World, acts: BulkActs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_acts, "KEPT", 2)
    made = [until(acts, acts.start("purge", Filter(), ADA)) for _ in range(4)]
    assert [act.id for act in acts.list()] == [act.id for act in reversed(made[1:])]
    for id in (made[0].id, uuid4()):
        with pytest.raises(NotThere) as caught:
            acts.get(id)
        assert caught.value.hint
