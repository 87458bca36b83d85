"""Captures as the store keeps them: fence, position, keys of known rows, staged parts, acts of operators."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.support.world import SOMEBODY, World
from todoku.core.capture import TableRule
from todoku.core.errors import DatabaseUnavailable, InvalidAct, NotThere
from todoku.core.message import Draft
from todoku.core.sealed import WrappedKey
from todoku.store import captures
from todoku.store.capture_portions import Fence, Portion, TableProgress
from todoku.store.captures import CaptureRow, CaptureStore
from todoku.store.failpoint import armed, lose
from todoku.store.sql import Statement, Steps, restyle

ORDERS = TableRule(table="public.orders", topic="orders.{op}", key=("id",))
MESSAGE = "topic, type, key, cast(payload as text), content_type, cast(headers as text), cast(labels as text)"
DELIVERY = "destination, queue, lane, priority, status, max_attempts, timeout, reason"
LINES = TableRule(table="public.lines", topic="lines", key=("order_id", "number"))


@pytest.fixture
def store(world: World) -> CaptureStore:
    """A store with one declared capture of two tables."""
    world.store.captures.declare("main", [ORDERS, LINES], snapshot=True)
    return world.store.captures


def read(store: CaptureStore, name: str = "main") -> CaptureRow:
    row = store.get(name)
    assert row is not None
    return row


def take(world: World, worker: UUID | None = None) -> Fence:
    row = world.store.captures.take("main", worker or world.worker())
    assert row is not None
    return row.fence


def messages(world: World) -> list[str]:
    """The topics of what was published, in order."""
    return [topic for (topic,) in world.sql("select topic from todoku_message order by seq")]


def keys(world: World) -> list[tuple[str, str, int]]:
    """The known keys: table, key, generation. Keys that belong to no table are not known."""
    rows = world.sql(
        "select t.table_name, k.key, k.generation from todoku_capture_key k"
        " join todoku_capture_table t on t.key_set = k.key_set order by 1, 2"
    )
    return [tuple(row) for row in rows]


def orders(*names: str) -> list[tuple[str, str]]:
    return [("public.orders", name) for name in names]


def drafts(world: World, *topics: str, to: Sequence[str] = ("warehouse",), ordered: bool = False) -> list[Draft]:
    return [world.drafts(topic=topic, to=to, ordered=ordered, key="k")[0] for topic in topics]


# ------------------------------------------------------------------------------------------------ declaring


def test_declaring_twice_is_declaring_once(store: CaptureStore) -> None:
    first = read(store)
    again = store.declare("main", [LINES, ORDERS], snapshot=True)
    assert (again.slot, again.publication, again.tables, again.epoch) == (
        first.slot, first.publication, first.tables, first.epoch
    )  # fmt: skip
    assert [row.name for row in store.list()] == ["main"]
    assert (first.state, first.lsn, first.owner, first.system_id, first.generation) == ("starting", 0, None, None, 1)
    assert [(table.table, table.topic, table.key, table.phase) for table in first.tables] == [
        ("public.lines", "lines", ("order_id", "number"), "waiting"),
        ("public.orders", "orders.{op}", ("id",), "waiting"),
    ]


def test_a_slot_has_a_name_that_the_server_accepts_and_no_other_todoku_has(store: CaptureStore) -> None:
    """Slots are of the whole server: two databases of todoku may have a capture of the same name."""
    before = read(store).slot
    assert before.startswith("todoku_main_")
    store.drop("main", SOMEBODY)
    assert store.declare("main", [ORDERS], snapshot=True).slot != before
    odd = store.declare("Ünï-" + "x" * 200, [ORDERS], snapshot=True).slot
    assert len(odd) <= 63
    assert odd.isascii()
    assert odd.replace("_", "a").isalnum()
    assert odd == odd.lower()


def test_a_table_without_a_snapshot_has_nothing_to_wait_for(store: CaptureStore) -> None:
    row = store.declare("other", [ORDERS, LINES], snapshot={"public.orders": False})
    assert [(table.table, table.phase, table.snapshot) for table in row.tables] == [
        ("public.lines", "waiting", True), ("public.orders", "done", False)
    ]  # fmt: skip


def test_a_new_table_is_added_and_a_new_topic_applied_without_a_new_snapshot(world: World, store: CaptureStore) -> None:
    fence = take(world)
    page = TableProgress(table="public.orders", position="[7]", copied=7, expected=9, phase="reading")
    assert store.store(fence, Portion(lsn=10, page=page), notify=False) == "stored"
    new = TableRule(table="public.customers", topic="customers", key=("id",))
    row = store.declare(
        "main", [TableRule(table="public.orders", topic="changed", key=("id",)), new], snapshot=True
    )  # fmt: skip
    assert [table.table for table in row.tables] == ["public.customers", "public.lines", "public.orders"]
    changed = row.table("public.orders")
    assert changed is not None
    assert (changed.topic, changed.phase, changed.position, changed.copied) == ("changed", "reading", "[7]", 7)
    assert row.fence == fence


def test_another_key_begins_the_snapshot_anew_and_fences_the_reader_out(world: World, store: CaptureStore) -> None:
    """Keys of the old columns are unknown from then on: nothing is deleted by them (R20)."""
    fence = take(world)
    page = TableProgress(table="public.orders", position=None, copied=2, phase="done")
    store.store(fence, Portion(lsn=10, added=orders("1", "2"), page=page), notify=False)
    row = store.declare("main", [TableRule(table="public.orders", topic="t", key=("number",))], snapshot=True)
    table = row.table("public.orders")
    assert table is not None
    assert (table.key, table.phase, table.copied, row.owner) == (("number",), "waiting", 0, None)
    assert keys(world) == []
    assert store.stale_keys("main", "public.orders", 100, 10) == ()
    assert store.store(fence, Portion(lsn=11), notify=False) == "lost"


# ------------------------------------------------------------------------------------------------ ownership


def test_a_capture_is_taken_only_if_its_owner_has_no_live_lease(world: World, store: CaptureStore) -> None:
    first, second = world.worker(name="first", lease=10), world.worker(name="second", lease=600)
    fence = take(world, first)
    assert store.take("main", second) is None
    row = read(store)
    assert (row.owner, row.owner_name, row.owned, row.epoch) == (first, "first", True, 1)
    world.advance(20)
    assert not read(store).owned
    taken = store.take("main", second)
    assert taken is not None
    assert (taken.owner, taken.owner_name, taken.owned, taken.epoch) == (second, "second", True, 2)
    assert store.store(fence, Portion(lsn=5), notify=False) == "lost"


def test_a_worker_that_takes_again_fences_its_earlier_self(world: World, store: CaptureStore) -> None:
    worker = world.worker()
    before, after = take(world, worker), take(world, worker)
    assert after.epoch == before.epoch + 1
    assert store.store(before, Portion(lsn=5), notify=False) == "lost"
    assert store.store(after, Portion(lsn=5), notify=False) == "stored"


def test_a_worker_without_a_lease_takes_nothing(world: World, store: CaptureStore) -> None:
    """It would be replaced at once, and again, and again."""
    assert store.take("main", uuid4()) is None
    late = world.worker(lease=10)
    world.advance(20)
    assert store.take("main", late) is None
    assert store.take("nothing", world.worker()) is None
    assert read(store).epoch == 0


def test_a_released_capture_is_free_at_once_and_only_its_owner_releases_it(world: World, store: CaptureStore) -> None:
    fence = take(world)
    store.release(Fence("main", uuid4(), fence.epoch))
    store.release(Fence("main", fence.owner, fence.epoch + 1))
    assert read(store).owner == fence.owner
    store.release(fence)
    assert read(store).owner is None
    assert store.store(fence, Portion(lsn=5), notify=False) == "lost"
    take(world)


def test_of_two_workers_at_once_one_takes_it(world: World, store: CaptureStore) -> None:
    stores = [world.another_store() for _ in range(2)]
    workers = [world.worker() for _ in stores]
    taken: list[CaptureRow | None] = []
    threads = [
        threading.Thread(target=lambda one=one, worker=worker: taken.append(one.captures.take("main", worker)))
        for one, worker in zip(stores, workers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 2
    assert sum(row is not None for row in taken) == 1


# -------------------------------------------------------------------------------------------- the position


def test_messages_and_position_are_one_commit(world: World, store: CaptureStore) -> None:
    """R16: what is lost before the commit did not happen, and a lost reply is recognised when it is repeated."""
    fence = take(world)
    portion = Portion(lsn=100, xid=7, committed_at=1_790_000_000.25, drafts=drafts(world, "a", "b"), added=orders("1"))
    with armed("store_capture.before_commit", lose), pytest.raises(DatabaseUnavailable):
        store.store(fence, portion, notify=True)
    assert (read(store).lsn, messages(world), keys(world)) == (0, [], [])
    with armed("store_capture.after_commit", lose), pytest.raises(DatabaseUnavailable):
        store.store(fence, portion, notify=True)
    assert store.store(fence, portion, notify=True) == "repeated"
    row = read(store)
    assert (row.lsn, row.newest_xid, row.changes) == (100, 7, 2)
    assert row.committed_at is not None
    assert row.committed_at.timestamp() == 1_790_000_000.25
    assert (messages(world), keys(world)) == (["a", "b"], [("public.orders", "1", 1)])


def test_a_position_never_falls_or_repeats(world: World, store: CaptureStore) -> None:
    """R16: `lsn < new`."""
    fence = take(world)
    assert store.store(fence, Portion(lsn=100, xid=3, drafts=drafts(world, "a")), notify=False) == "stored"
    for lsn in (100, 99, 1):
        assert store.store(fence, Portion(lsn=lsn, drafts=drafts(world, "b")), notify=False) == "repeated"
    assert store.store(fence, Portion(lsn=101), notify=False) == "stored"  # a heartbeat: nothing but the position
    row = read(store)
    assert (row.lsn, row.newest_xid, row.changes, messages(world)) == (101, 3, 1, ["a"])


def test_a_store_under_another_owner_or_epoch_changes_nothing(world: World, store: CaptureStore) -> None:
    """R16: each part of the fence alone."""
    fence = take(world)
    for wrong in (
        Fence("main", uuid4(), fence.epoch),
        Fence("main", fence.owner, fence.epoch + 1),
        Fence("main", fence.owner, fence.epoch - 1),
        Fence("other", fence.owner, fence.epoch),
    ):
        portion = Portion(lsn=9, drafts=drafts(world, "a"), added=orders("1"))
        assert store.store(wrong, portion, notify=False) == "lost"
        assert store.store_staged(wrong, portion, notify=False) == "lost"
        assert not store.stage(wrong, 0, drafts(world, "a"))
        assert not store.measure(wrong, behind=1, retained=1)
        assert not store.warn(wrong, ["late"])
        assert not store.set_state(wrong.name, "away", fence=wrong)
        assert not begin(store, wrong)
        store.discard_stage(wrong)
    row = read(store)
    assert (row.lsn, row.state, row.warnings, row.measured_at, messages(world)) == (0, "starting", (), None, [])
    assert keys(world) == []


def begin(store: CaptureStore, fence: Fence, lsn: int = 50) -> bool:
    oids = {"public.orders": 16_400, "public.unknown": 1}
    return store.begin(
        fence, system_id="7512", timeline=3, publication_oid=16_399, relation_oids=oids, lsn=lsn, generation=1
    )


def test_what_was_found_at_the_source_is_recorded(world: World, store: CaptureStore) -> None:
    fence = take(world)
    store.set_state("main", "away", why="no answer", fence=fence)
    assert begin(store, fence)
    row = read(store)
    assert (row.system_id, row.timeline, row.publication_oid, row.lsn) == ("7512", 3, 16_399, 50)
    assert (row.state, row.why) == ("starting", None)
    assert [(table.table, table.relation_oid) for table in row.tables] == [
        ("public.lines", None), ("public.orders", 16_400)
    ]  # fmt: skip
    assert begin(store, fence, lsn=40)
    assert read(store).lsn == 50  # the position never falls


def test_large_numbers_of_the_source_fit(world: World, store: CaptureStore) -> None:
    fence = take(world)
    assert store.begin(
        fence, system_id="18446744073709551615", timeline=2**32 - 1, publication_oid=2**32 - 1,
        relation_oids={"public.orders": 2**32 - 1}, lsn=2**62, generation=1,
    )  # fmt: skip
    assert store.store(fence, Portion(lsn=2**63 - 1, xid=2**32 - 1), notify=False) == "stored"
    row = read(store)
    assert (row.lsn, row.newest_xid, row.timeline) == (2**63 - 1, 2**32 - 1, 2**32 - 1)


def test_a_page_is_stored_with_its_position(world: World, store: CaptureStore) -> None:
    fence = take(world)
    page = TableProgress(table="public.orders", position='["2"]', copied=2, expected=3, phase="reading")
    rows = drafts(world, "orders.snapshot", "orders.snapshot")
    assert store.store(fence, Portion(lsn=10, drafts=rows, added=orders("1", "2"), page=page), notify=False) == "stored"
    last = TableProgress(table="public.orders", position=None, copied=3, phase="done")
    assert store.store(fence, Portion(lsn=11, added=orders("3"), page=last), notify=False) == "stored"
    table = read(store).table("public.orders")
    assert table is not None
    assert (table.phase, table.position, table.copied, table.expected) == ("done", None, 3, 3)


# ----------------------------------------------------------------------------------- keys and generations


def test_keys_come_and_go_with_their_messages(world: World, store: CaptureStore) -> None:
    """Of one portion: first TRUNCATE, then what was removed, then what was added; each key once."""
    fence = take(world)
    added = [*orders("1", "2", "2"), ("public.lines", '["1","1"]')]
    store.store(fence, Portion(lsn=1, added=added), notify=False)
    store.store(fence, Portion(lsn=2, removed=orders("1", "2", "9"), added=orders("2", "é'\"\\")), notify=False)
    assert keys(world) == [
        ("public.lines", '["1","1"]', 1), ("public.orders", "2", 1), ("public.orders", "é'\"\\", 1)
    ]  # fmt: skip
    store.store(fence, Portion(lsn=3, truncated=["public.orders"], added=orders("5")), notify=False)
    assert keys(world) == [("public.lines", '["1","1"]', 1), ("public.orders", "5", 1)]


def test_keys_that_a_new_snapshot_has_not_seen_are_stale(world: World, store: CaptureStore) -> None:
    """R20: what the pages or the stream have seen since the snapshot began is not."""
    fence = take(world)
    store.store(fence, Portion(lsn=1, added=orders("1", "2", "3", "4")), notify=False)
    row = store.restart("main", None, SOMEBODY)
    table = row.table("public.orders")
    assert table is not None
    assert (table.generation, row.generation) == (2, 2)
    fence = take(world)
    store.store(fence, Portion(lsn=2, added=orders("2", "7"), removed=orders("4")), notify=False)
    assert sorted(store.stale_keys("main", "public.orders", 2, 10)) == ["1", "3"]
    (one,) = store.stale_keys("main", "public.orders", 2, 1)
    assert one in ("1", "3")
    assert store.stale_keys("main", "public.orders", 1, 10) == ()
    assert store.stale_keys("main", "public.lines", 2, 10) == ()
    store.store(fence, Portion(lsn=3, removed=orders("1", "3")), notify=False)
    assert store.stale_keys("main", "public.orders", 2, 10) == ()
    assert [(key, generation) for _, key, generation in keys(world)] == [("2", 2), ("7", 2)]


def test_keys_that_a_TRUNCATE_has_left_are_pruned_in_portions(
    world: World, store: CaptureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRUNCATE costs the same whatever the number of keys; no key of a table that has them is pruned."""
    monkeypatch.setattr(captures, "_PRUNED", 2)
    fence = take(world)
    store.store(fence, Portion(lsn=1, added=orders("1", "2", "3", "4", "5")), notify=False)
    store.store(fence, Portion(lsn=2, truncated=["public.orders", "public.lines"], added=orders("6")), notify=False)
    left = []
    for _ in range(4):
        assert store.measure(fence, behind=0, retained=0)
        left.append(world.sql("select count(*) from todoku_capture_key")[0][0])
    assert left == [4, 2, 1, 1]
    assert keys(world) == [("public.orders", "6", 1)]


# -------------------------------------------------------------------------------------------------- staging


def stage(world: World, fence: Fence, number: int, *topics: str, ordered: bool = True, **changes: object) -> None:
    found = drafts(world, *topics, ordered=ordered, to=["warehouse", "search"])
    assert world.store.captures.stage(fence, number, found, **changes)  # type: ignore[arg-type]


def test_staged_parts_are_published_by_one_commit_in_their_order(world: World, store: CaptureStore) -> None:
    """R19: all or nothing; keys change in the order of the parts."""
    fence = take(world)
    stage(world, fence, 0, "a", "b", added=orders("1", "2"))
    stage(world, fence, 1, "c", removed=orders("1"), added=orders("3"))
    stage(world, fence, 2, "d", truncated=["public.lines"])
    assert (messages(world), keys(world), read(store).lsn) == ([], [], 0)
    portion = Portion(lsn=100, xid=5, drafts=drafts(world, "e", ordered=True), added=orders("4"))
    with armed("store_capture.before_commit", lose), pytest.raises(DatabaseUnavailable):
        store.store_staged(fence, portion, notify=True)
    assert (messages(world), keys(world), read(store).lsn) == ([], [], 0)
    with armed("store_capture.after_commit", lose), pytest.raises(DatabaseUnavailable):
        store.store_staged(fence, portion, notify=True)
    assert store.store_staged(fence, portion, notify=True) == "repeated"
    row = read(store)
    assert (row.lsn, row.changes, messages(world)) == (100, 5, ["a", "b", "c", "d", "e"])
    assert [key for _, key, _ in keys(world)] == ["2", "3", "4"]
    assert world.sql("select count(*) from todoku_capture_stage")[0][0] == 0
    claims = world.claim_lanes(world.worker())
    assert [claim.topic for claim in claims if claim.destination == "search"] == ["a", "b", "c", "d"]
    assert [claim.topic for claim in claims if claim.destination == "warehouse"] == ["a", "b", "c", "d", "e"]


def test_a_part_that_is_staged_again_after_a_lost_reply_is_there_once(world: World, store: CaptureStore) -> None:
    fence = take(world)
    found = drafts(world, "a", ordered=True)
    with armed("stage_capture.after_commit", lose), pytest.raises(DatabaseUnavailable):
        store.stage(fence, 0, found)
    assert store.stage(fence, 0, found)
    assert store.store_staged(fence, Portion(lsn=1), notify=False) == "stored"
    assert messages(world) == ["a"]


def test_what_an_earlier_reader_has_staged_is_discarded(world: World, store: CaptureStore) -> None:
    """R19: by the next one that takes the capture, and by the same one when its connection breaks."""
    fence = take(world)
    stage(world, fence, 0, "a")
    store.discard_stage(fence)
    stage(world, fence, 0, "b")
    after = take(world, fence.owner)
    assert not store.stage(fence, 1, drafts(world, "late"))
    assert store.store_staged(fence, Portion(lsn=9), notify=False) == "lost"
    stage(world, after, 0, "c")
    assert store.store_staged(after, Portion(lsn=9), notify=False) == "stored"
    assert messages(world) == ["c"]


def test_everything_of_a_draft_survives_the_staging(world: World, store: CaptureStore) -> None:
    """What is stored is what would be stored without it."""
    key = WrappedKey(id=uuid4(), day="2026-11-17", master_key_id="m", wrapped=b"\x00\x01\x02")
    found = world.drafts(
        2, topic="t", key="k", ordered=True, headers={"capture": "main"}, delay=5.0, labels=["a", "b"], expires=600.0,
        priority=3, max_attempts=9, payload=lambda _: {"row": {"amount": "1.10", "json": [1, None, "é"]}},
    )  # fmt: skip
    found = [msgspec.structs.replace(draft, sealed_with=key) for draft in found]
    fence = take(world)
    assert store.stage(fence, 0, found[:1])
    assert store.store_staged(fence, Portion(lsn=1), notify=False) == "stored"
    world.store.run(world.steps(found[1:]))
    first, second = world.sql(f"select {MESSAGE} from todoku_message order by seq")
    assert first == second
    first, second = world.sql(f"select {DELIVERY} from todoku_delivery order by id")
    assert first == second
    assert world.sql("select count(*) from todoku_label")[0][0] == 4
    assert world.sql("select count(*) from todoku_data_key")[0][0] >= 1
    once = [world.drafts(idempotency_key="once")[0] for _ in range(2)]
    assert store.stage(fence, 0, once[:1])
    assert store.store_staged(fence, Portion(lsn=2), notify=False) == "stored"
    assert world.store.run(world.steps(once[1:]))[0].duplicate


@pytest.mark.postgres
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_no_lane_is_published_to_between_the_parts(world: World, store: CaptureStore) -> None:
    """I10: whole destinations are locked, so a publisher of the same key waits until all parts are committed."""
    fence = take(world)
    stage(world, fence, 0, "a")
    stage(world, fence, 1, "b")
    with world.connect() as publisher:
        locks = world.drafts(topic="between", key="k", ordered=True, to=["search"])
        for statement in locking(world.steps(locks)):
            publisher.execute(restyle(statement.sql, "pyformat"), statement.values)
        done = threading.Thread(target=lambda: store.store_staged(fence, Portion(lsn=1), notify=False))
        done.start()
        world.until_blocked()
        publisher.rollback()
        done.join(60)
    assert messages(world) == ["a", "b"]


def locking(steps: Steps[object]) -> Iterator[Statement]:
    """The statements with which a publish locks its destinations and lanes."""
    statement = next(steps)
    while "lock" in statement.sql:
        yield statement
        statement = steps.send([])


# -------------------------------------------------------------------------------------- states and measures


def test_a_change_of_state_is_reported_once_and_a_stop_is_audited(world: World, store: CaptureStore) -> None:
    fence = take(world)
    assert store.set_state("main", "streaming", fence=fence)
    assert not store.set_state("main", "streaming", fence=fence)
    assert store.set_state("main", "stopped", reason="SLOT_LOST", why="the slot was invalidated", fence=fence)
    assert not store.set_state("main", "stopped", reason="SLOT_LOST", why="the slot was invalidated", fence=fence)
    assert store.set_state("main", "stopped", reason="SLOT_LOST", why="more is known", fence=None)
    row = read(store)
    assert (row.state, row.reason, row.why, row.is_down) == ("stopped", "SLOT_LOST", "more is known", True)
    acts = world.sql("select by, action, target, why from todoku_audit")
    assert [tuple(act) for act in acts] == [("todoku", "stop", "capture:main", "the slot was invalidated")]
    assert not store.set_state("nothing", "away", fence=None)


def test_a_source_that_is_away_counts_after_a_minute(world: World, store: CaptureStore) -> None:
    store.set_state("main", "away", reason="SOURCE_AWAY", why="no answer", fence=None)
    world.advance(50)
    store.set_state("main", "away", reason="SOURCE_AWAY", why="still no answer", fence=None)
    assert not read(store).is_down
    world.advance(20)
    assert read(store).is_down  # since the first of the two
    store.set_state("main", "streaming", fence=None)
    assert not read(store).is_down


def test_measures_and_warnings_are_kept(world: World, store: CaptureStore) -> None:
    fence = take(world)
    assert store.measure(fence, behind=12, retained=2**40)
    assert store.warn(fence, ["max_slot_wal_keep_size is -1", "and 'more'"])
    row = read(store)
    assert (row.behind_bytes, row.retained_bytes) == (12, 2**40)
    assert row.measured_at is not None
    assert row.warnings == ("max_slot_wal_keep_size is -1", "and 'more'")
    assert store.warn(fence, [])
    assert read(store).warnings == ()


# ---------------------------------------------------------------------------------------- acts of operators


def test_a_snapshot_of_a_table_goes_on_from_the_position(world: World, store: CaptureStore) -> None:
    fence = take(world)
    begin(store, fence)
    store.set_state("main", "streaming", fence=fence)
    for lsn, table in ((60, "public.orders"), (61, "public.lines")):
        page = TableProgress(table=table, position="[1]", copied=1, phase="done")
        store.store(fence, Portion(lsn=lsn, page=page), notify=False)
    position = read(store).lsn
    row = store.restart("main", ["public.orders"], SOMEBODY)
    assert (row.state, row.lsn, row.system_id, row.owner) == ("streaming", position, "7512", None)
    assert [(one.table, one.phase, one.position, one.generation) for one in row.tables] == [
        ("public.lines", "done", "[1]", 1), ("public.orders", "waiting", None, 2)
    ]  # fmt: skip
    assert store.store(fence, Portion(lsn=900), notify=False) == "lost"  # it would go on with the old snapshot
    acts = world.sql("select by, action, target, why from todoku_audit")
    assert [tuple(act) for act in acts] == [("somebody", "snapshot of public.orders", "capture:main", "a test")]


def test_a_stopped_capture_begins_anew_with_a_new_slot(world: World, store: CaptureStore) -> None:
    """R20: what was known of the slot is forgotten; a new generation finds the rows that are gone."""
    fence = take(world)
    begin(store, fence)
    store.warn(fence, ["old"])
    stage(world, fence, 0, "a")
    store.set_state("main", "stopped", reason="SLOT_LOST", why="lost", fence=fence)
    with pytest.raises(InvalidAct, match="all its tables"):
        store.restart("main", ["public.orders"], SOMEBODY)
    row = store.restart("main", None, SOMEBODY)
    assert (row.state, row.reason, row.why, row.lsn, row.generation) == ("starting", None, None, 0, 2)
    assert (row.system_id, row.timeline, row.publication_oid, row.newest_xid, row.warnings) == (
        None, None, None, None, ()
    )  # fmt: skip
    assert [(one.phase, one.relation_oid, one.generation) for one in row.tables] == [("waiting", None, 2)] * 2
    assert world.sql("select count(*) from todoku_capture_stage")[0][0] == 0
    assert begin(store, take(world), lsn=7)
    assert read(store).lsn == 7


def test_tables_without_a_snapshot_are_read_only_if_they_are_named(world: World, store: CaptureStore) -> None:
    store.declare("plain", [ORDERS], snapshot=False)
    with pytest.raises(InvalidAct, match="declared with a snapshot"):
        store.restart("plain", None, SOMEBODY)
    with pytest.raises(InvalidAct, match=r"no table 'public\.nothing'") as caught:
        store.restart("plain", ["orders", "nothing"], SOMEBODY)
    assert "public.orders" in (caught.value.hint or "")
    assert [one.phase for one in store.restart("plain", ["orders"], SOMEBODY).tables] == ["waiting"]
    store.declare("gone", [ORDERS], snapshot=False)
    store.set_state("gone", "stopped", reason="SLOT_LOST", why="lost", fence=None)
    row = store.restart("gone", None, SOMEBODY)
    assert (row.state, [one.phase for one in row.tables]) == ("starting", ["done"])
    with pytest.raises(NotThere):
        store.restart("nothing", None, SOMEBODY)


def test_a_dropped_capture_is_gone_with_everything(
    world: World, store: CaptureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "_PRUNED", 2)
    store.declare("other", [ORDERS], snapshot=True)
    fence = take(world)
    store.store(fence, Portion(lsn=1, added=orders("1", "2", "3", "4", "5")), notify=False)
    stage(world, fence, 0, "a")
    dropped = store.drop("main", SOMEBODY)
    assert dropped is not None
    assert dropped.slot.startswith("todoku_main_")
    assert store.drop("main", SOMEBODY) is None
    assert [row.name for row in store.list()] == ["other"]
    for table in ("todoku_capture_key", "todoku_capture_stage"):
        assert world.sql(f"select count(*) from {table}")[0][0] == 0
    assert world.sql("select count(*) from todoku_capture_table")[0][0] == 1
    assert store.store(fence, Portion(lsn=2), notify=False) == "lost"
    acts = world.sql("select by, action, target from todoku_audit")
    assert [tuple(act) for act in acts] == [("somebody", "drop", "capture:main")]
