"""Projections as the store keeps them: indexes, acknowledgements, the position of a rebuild, the lag."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.world import SOMEBODY, World, aborted
from todoku.core.errors import InvalidAct, NotThere
from todoku.store.projections import ProjectionStore, RebuildProgress

NAME = "documents"


@pytest.fixture
def store(world: World) -> ProjectionStore:
    """A store with one declared projection."""
    world.store.projections.declare(NAME, "search", "docs-1")
    return world.store.projections


def begin(store: ProjectionStore) -> int:
    return store.begin_rebuild(NAME, lambda generation: f"docs-{generation}", SOMEBODY).revision


def publish(world: World, *keys: str) -> None:
    for key in keys:
        world.publish(to=[NAME], ordered=True, key=key)


def test_declaring_twice_is_declaring_once(store: ProjectionStore) -> None:
    """The first index is the one of the first declaration; another kind under the name is refused."""
    row = store.declare(NAME, "search", "docs-other")
    assert [(index.name, index.generation, index.role, index.written) for index in row.indexes] == [
        ("docs-1", 1, "live", True)
    ]
    assert store.list() == (row,)
    with pytest.raises(InvalidAct, match="is a search"):
        store.declare(NAME, "chronicle", None)


def test_what_is_not_there_is_said(world: World) -> None:
    assert world.store.projections.get("nobody") is None
    assert world.store.projections.admit("nobody", uuid4()) is None
    with pytest.raises(NotThere):
        world.store.projections.set_readable("nobody", SOMEBODY, readable=True)


def test_a_rebuild_raises_the_revision_and_the_generation(store: ProjectionStore) -> None:
    """R21, R22: a new generation for the new index alone; workers have to acknowledge the new revision."""
    before = store.get(NAME)
    assert before is not None
    assert begin(store) == before.revision + 1
    row = store.get(NAME)
    assert row is not None
    assert [(index.generation, index.role) for index in row.written] == [(1, "live"), (2, "building")]
    with pytest.raises(InvalidAct, match="is being built"):
        begin(store)


def test_a_rebuild_waits_for_admitted_workers_with_a_lease(world: World, store: ProjectionStore) -> None:
    """R22: a worker that was admitted before holds it up; one that ended its lease, or came later, does not."""
    early, gone, late = uuid4(), uuid4(), uuid4()
    for worker, name in ((early, "early"), (gone, "gone"), (late, "late")):
        world.store.leases.register(worker, name=name, lease=60)
    store.admit(NAME, early)
    store.admit(NAME, gone)
    revision = begin(store)
    store.admit(NAME, late)
    world.store.leases.end(gone, lost=True)
    assert store.late_writers(NAME, revision) == ("early",)
    store.acknowledge(NAME, early, revision)
    assert store.late_writers(NAME, revision) == ()
    store.acknowledge(NAME, early, revision - 1)  # never falls
    assert store.late_writers(NAME, revision) == ()


def test_a_worker_whose_lease_ran_out_counts_until_it_is_reclaimed(world: World, store: ProjectionStore) -> None:
    """R22: until then it may still settle what it wrote to the old index alone."""
    worker = uuid4()
    world.store.leases.register(worker, name="slow", lease=10)
    store.admit(NAME, worker)
    revision = begin(store)
    world.advance(20)
    assert store.late_writers(NAME, revision) == ("slow",)
    world.store.leases.reclaim()
    assert store.late_writers(NAME, revision) == ()


def test_the_position_of_a_rebuild_is_compared_and_set(store: ProjectionStore) -> None:
    """Of two rebuilds one goes on; rejected documents add up."""
    begin(store)
    row = store.get(NAME)
    assert row is not None
    index = row.of("building")
    assert index is not None
    progress = RebuildProgress(phase="filling", position="k9", copied=10, expected=50, rejected=2)
    after = store.advance(NAME, index, progress)
    assert (after.phase, after.position, after.copied, after.expected, after.rejected) == ("filling", "k9", 10, 50, 2)
    with pytest.raises(InvalidAct, match="another process"):
        store.advance(NAME, index, progress)
    assert store.advance(NAME, after, progress).rejected == 4
    store.reject(NAME, index.name, 3)
    found = store.get(NAME)
    assert found is not None
    assert found.of("building").rejected == 7  # type: ignore[union-attr]


def test_a_switch_keeps_the_old_index_written(store: ProjectionStore) -> None:
    begin(store)
    row = store.switch(NAME, "docs-2", SOMEBODY)
    assert [(index.name, index.role, index.written) for index in row.indexes] == [
        ("docs-1", "kept", True), ("docs-2", "live", True)
    ]  # fmt: skip
    with pytest.raises(InvalidAct, match="kept"):
        begin(store)
    assert store.unwrite(NAME, "docs-1").revision == row.revision + 1
    store.remove_index(NAME, "docs-1", SOMEBODY)
    assert begin(store) == row.revision + 2


def test_a_stop_pauses_the_queue_and_a_rebuild_lets_it_run(world: World, store: ProjectionStore) -> None:
    """R21: nothing is claimed while it is stopped; the index that is ahead is not written any more."""
    store.stop(NAME, "the index is ahead")
    store.stop(NAME, "once more")
    row = store.get(NAME)
    assert row is not None
    assert (row.state, row.why) == ("stopped", "the index is ahead")
    assert [(queue.name, queue.paused) for queue in world.store.limits.read().queues] == [(NAME, True)]
    begin(store)
    row = store.get(NAME)
    assert row is not None
    assert (row.state, row.why, [index.name for index in row.written]) == ("running", None, ["docs-2"])
    assert all(not queue.paused for queue in world.store.limits.read().queues)
    acts = world.sql("select by, action, target from todoku_audit order by id")
    assert [tuple(act) for act in acts] == [
        ("todoku", "stop", f"projection:{NAME}"), ("somebody", "rebuild", f"projection:{NAME}")
    ]  # fmt: skip


def test_the_newest_number_is_the_last_that_was_drawn(world: World, store: ProjectionStore) -> None:
    """R21: pruned messages count; an empty table does not mean that nothing was drawn."""
    assert store.newest() == 0
    publish(world, "a", "b", "c")
    drawn = store.newest()
    assert drawn == 3
    world.sql("delete from todoku_delivery")
    world.sql("delete from todoku_message")
    assert store.newest() == drawn


def test_the_lag_counts_what_waits_what_runs_and_what_is_parked(world: World, store: ProjectionStore) -> None:
    publish(world, "a", "a", "b", "c")
    world.advance(30)
    lag = store.lag(NAME)
    assert (lag.events, round(lag.age), lag.oldest, lag.complete) == (4, 30, 1, True)
    worker = world.worker()
    claims = world.store.claims.take_lanes(worker, [(NAME, NAME)], lanes=10, limit=10)
    assert store.lag(NAME).events == 4
    assert store.unfinished(NAME, ["a", "x"]) == {"a"}
    world.settle([claim for claim in claims if claim.key == "a"][:1], aborted("REFUSED"))
    world.settle([claim for claim in claims if claim.key in ("b", "c")])
    dead = store.dead(NAME, ["a", "b"])
    assert (list(dead), dead["a"].sequence) == (["a"], 1)
    assert [(letter.key, letter.sequence) for letter in store.dead_letters(NAME, 0, 10)] == [("a", 1)]
    assert store.dead_letters(NAME, dead["a"].delivery, 10) == ()
    assert store.lag(NAME).events == 1  # it waits behind the dead letter, in a parked lane
    assert store.lag(NAME, most=1).complete is False


def test_a_removed_projection_is_gone_with_its_indexes_and_writers(world: World, store: ProjectionStore) -> None:
    store.admit(NAME, uuid4())
    begin(store)
    store.remove(NAME, SOMEBODY)
    assert store.list() == ()
    for table in ("todoku_projection_index", "todoku_projection_writer"):
        assert world.sql(f"select count(*) from {table}")[0][0] == 0
