"""A copy has every row of every table as it was, found to be so by its digests; and it begins only where it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.store.filling import JSON, MOMENT, fill
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.errors import InvalidAct, SchemaError, StoreError
from todoku.engine.copy import Copied, CopyProgress, copy, plan
from todoku.store.claims import Waiting
from todoku.store.columns import EPOCH
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.table import AT_ONCE, NOT_COPIED, Table, batches, measure, select_tables, tables

pytestmark = pytest.mark.postgres

Make = Callable[[str], World]


@pytest.fixture
def make(tmp_path: Path, postgres_url: str) -> Iterator[Make]:
    """Databases by name: `sqlite…` is a file, `postgres` a database, `postgres:name` a schema in it."""
    made: list[World] = []

    def one(name: str) -> World:
        if name.startswith("sqlite"):
            made.append(World("sqlite", f"sqlite:///{tmp_path}/{name}.db"))
        else:
            schema = {"schema": name.partition(":")[2]} if ":" in name else {}
            made.append(World("postgres", postgres_url, **schema))
        made[-1].store.migrate()
        return made[-1]

    yield one
    for world in made:
        world.close()


def copy_of(source: World, target: World, **options: Any) -> dict[str, Copied]:
    return {one.table: one for one in copy(source.store.database, target.store.database, **options)}


def shape(world: World) -> dict[str, Table]:
    with world.store.database.bulk() as bulk:
        return tables(bulk)


def nullable(world: World) -> set[tuple[str, str]]:
    return set(
        world.sql(
            "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
            " where c.relname like 'todoku%' and a.attnum > 0 and not a.attnotnull"
        )
    )  # type: ignore[arg-type]


def everything(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """What is in a SQLite file, read as it lies there."""
    return {name: sorted(world.sql(f"select * from {name}"), key=repr) for name in set(shape(world)) - set(NOT_COPIED)}


def test_every_kind_of_value_in_every_table_goes_there_and_back(make: Make) -> None:
    first, between, last = make("sqlite"), make("postgres"), make("sqlite-again")
    fill(first, shape(between), nullable(between))
    there, back = copy_of(first, between), copy_of(between, last)
    assert {name: one.digest for name, one in there.items()} == {name: one.digest for name, one in back.items()}
    assert {one.rows for one in back.values()} == {3}, "no table is forgotten"
    assert everything(first) == everything(last)


def test_postgresql_has_what_is_its_own_way_to_say_it(make: Make) -> None:
    source, target = make("sqlite"), make("postgres")
    fill(source, shape(target), nullable(target))
    copy_of(source, target)
    payloads = target.sql("select payload::text from todoku_message where payload is not null")
    assert {text for (text,) in payloads} == {JSON}
    seen = target.sql("select seen_at::text, open_until::text from todoku_destination order by name")
    assert ("infinity", "infinity") in seen
    assert ("-infinity", "-infinity") in seen, "0 is SQLite's way to say that it never was"
    ((latest,),) = target.sql("select max(created_at) from todoku_message where created_at < 'infinity'")
    assert latest == EPOCH + timedelta(microseconds=MOMENT)
    assert target.sql("select count(*) from todoku_queue where paused") == [(1,)]


def test_from_postgresql_to_another_schema_of_the_same_database(make: Make) -> None:
    source, target, last = make("postgres"), make("postgres:second"), make("sqlite")
    fill(source, shape(source), nullable(source))
    one, other = copy_of(source, target), copy_of(target, last)
    assert [part.digest for part in one.values()] == [part.digest for part in other.values()]
    assert source.sql("select count(*) from second.todoku_message") == [(3,)]


def test_every_table_is_copied_or_said_not_to_be(make: Make) -> None:
    found = shape(make("sqlite"))
    assert set(found) == set(shape(make("postgres")))
    assert {table.name for table in select_tables(found)} == set(found) - set(NOT_COPIED)
    assert set(AT_ONCE) <= set(found)
    assert set(NOT_COPIED) - set(found) == {"todoku_copy", "todoku_claim_list"}


def test_a_digest_notices_a_changed_a_missing_and_a_doubled_row_but_no_other_order() -> None:
    rows: list[tuple[object, ...]] = [(1, "one", None), (2, "two", b"2"), (2, "two", b"2")]
    same = measure(rows)
    assert measure(reversed(rows)) == same
    for other in (
        rows[:2],
        [*rows, rows[0]],
        [rows[0], rows[1], (2, "two", "2")],
        [rows[0], (1, "one", None), rows[1]],
    ):
        assert measure(other) != same


def test_a_batch_is_neither_too_long_nor_too_large() -> None:
    assert [len(batch) for batch in batches((number,) for number in range(12_000))] == [5000, 5000, 2000]
    assert [len(batch) for batch in batches([("x" * (5 << 20),)] * 5)] == [2, 2, 1]
    assert list(batches([])) == []


# ------------------------------------------------------------------------------------------------- to go on


def lived_in(world: World) -> None:
    """A database in which something has happened: done, failed, dead, kept in order, remembered, signed."""
    world.publish(5, to=["done"])
    world.publish(4, to=["bad"], idempotency_key=None)
    world.publish(1, to=["once"], idempotency_key="k1")
    world.publish(3, to=["lane"], ordered=True, key="a")
    worker = world.worker()
    claims = world.claim(worker, destinations=["done", "bad"])
    world.settle([claim for claim in claims if claim.destination == "done"])
    bad = [claim for claim in claims if claim.destination == "bad"]
    world.settle(bad[:2], aborted())
    world.settle(bad[2:], failed(delay=3600))
    world.store.acts.replay(Filter(ids=(bad[0].id,)), SOMEBODY)
    world.store.leases.end(worker, lost=False)


@pytest.mark.parametrize("target", ["postgres", "sqlite-again"])
def test_a_worker_on_the_target_goes_on_exactly_where_the_source_was(make: Make, target: str) -> None:
    old, new = make("sqlite"), make(target)
    lived_in(old)
    before = old.deliveries(), old.history(), old.store.claims.waiting(None)
    copy_of(old, new)
    assert (new.deliveries(), new.history(), new.store.claims.waiting(None)) == before
    known = new.publish(1, to=["once"], idempotency_key="k1")[0]
    assert known.duplicate, "its key is still remembered"
    worker = new.worker()
    lane = [claim.id for claim in new.claim_lanes(worker)]
    assert lane == sorted(delivery.id for delivery in before[0] if delivery.destination == "lane"), "I10"
    claims = new.claim(worker)
    assert {claim.id: claim.epoch for claim in claims} == {
        delivery.id: delivery.epoch + 1 for delivery in before[0] if delivery.destination in ("once", "bad")
        and delivery.status == "pending"
    }  # fmt: skip
    assert new.settle(claims).lost == ()
    assert new.store.broken(history_ttl=3600, ledger_ttl=3600) == {}


@pytest.mark.parametrize("target", ["postgres", "sqlite-again"])
def test_no_id_is_given_away_twice_though_its_row_is_gone(make: Make, target: str) -> None:
    """I4: a token (id, epoch, worker) works once."""
    old, new = make("sqlite"), make(target)
    last = old.publish(7)[-1]
    worker = old.worker()
    old.settle(old.claim(worker))
    old.store.leases.end(worker, lost=False)
    gone = max(found.id for found in old.history())
    old.sql("delete from todoku_history")
    old.sql("delete from todoku_message")
    copy_of(old, new)
    assert new.publish()[0].id != last.id
    assert [found.id for found in new.deliveries()] == [gone + 1]


def test_history_of_other_days_finds_its_partition(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    for days in (0, 3, 25):
        old.advance(-days * 86_400)
        worker = old.worker()
        old.publish()
        old.settle(old.claim(worker))
        old.store.leases.end(worker, lost=False)
        old.reset_clock()
    copy_of(old, new)
    assert new.sql("select count(*) from todoku_history") == [(3,)]
    assert new.store.facts().stray == 0
    assert new.store.retention.prune(history_ttl=10 * 86_400).history > 0, "and leaves with it"
    assert new.sql("select count(*) from todoku_history") == [(2,)]


@pytest.mark.parametrize("target", ["postgres", "sqlite-again"])
def test_what_a_killed_worker_left_is_reclaimed_in_the_target(make: Make, target: str) -> None:
    old, new = make("sqlite"), make(target)
    old.publish(2)
    old.publish(2, to=["lane"], ordered=True, key="a")
    dead = old.worker(lease=30)
    assert len(old.claim(dead)) == 2
    assert len(old.claim_lanes(dead)) == 2
    old.advance(31)
    copy_of(old, new)
    assert {found.status for found in new.deliveries()} == {"sending"}
    new.store.leases.reclaim()
    assert {(found.status, found.lost) for found in new.deliveries()} == {("pending", 1)}, "as in the source"
    assert [claim.lane is not None for claim in new.claim_lanes(new.worker())] == [True]


def test_the_audit_of_the_target_is_append_only_too(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    lived_in(old)
    copy_of(old, new)
    assert new.sql("select by, why from todoku_audit") == [("somebody", "a test")]
    with pytest.raises(Exception, match="append-only"):
        new.sql("delete from todoku_audit")


# ------------------------------------------------------------------------------------------------ again and again


@pytest.mark.parametrize("names", [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_broken_off_after_each_commit_it_goes_on_where_it_was(make: Make, names: tuple[str, str]) -> None:
    old, new = map(make, names)
    lived_in(old)
    filled = {part.table for part in plan(old.store.database, new.store.database) if part.rows} - set(AT_ONCE)
    assert {"todoku_message", "todoku_history", "todoku_attempt", "todoku_ledger"} <= filled
    commits = 0
    with armed("copy.after_commit", lose):
        while not new.deliveries():
            assert new.store.claims.waiting(None) == Waiting((), (), ()), "nothing can run before all of it is there"
            with pytest.raises(StoreError, match="failpoint"):
                copy_of(old, new)
            commits += 1
    assert commits == 1 + len(filled) + 1, "to begin, for each table, and for the deliveries; none of them twice"
    assert (new.deliveries(), new.history()) == (old.deliveries(), old.history())
    with pytest.raises(InvalidAct, match="other rows"):
        copy_of(old, new)


def test_a_source_that_was_changed_between_two_runs_is_found_out_and_copied_anew(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    lived_in(old)

    def until_messages(step: CopyProgress) -> None:
        if step.table == "todoku_message":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_of(old, new, on_progress=until_messages)
    old.sql("update todoku_message set topic = 'changed' where seq = 2")
    with pytest.raises(StoreError, match="todoku_message is not the same on both sides: a row differs"):
        copy_of(old, new)
    assert new.deliveries() == []
    with pytest.raises(StoreError, match="a row differs"):
        copy_of(old, new)
    copy_of(old, new, restart=True)
    assert new.deliveries() == old.deliveries()
    assert new.sql("select topic from todoku_message where seq = 2") == [("changed",)]


def test_an_unfinished_copy_of_another_database_is_not_continued(make: Make) -> None:
    old, new, other = make("sqlite"), make("postgres"), make("sqlite-other")
    other.publish(2)
    with armed("copy.after_commit", lose), pytest.raises(StoreError, match="failpoint"):
        copy_of(old, new)
    with pytest.raises(InvalidAct, match="unfinished copy of another database"):
        copy_of(other, new)
    with pytest.raises(InvalidAct, match="source is itself an unfinished copy"):
        copy_of(new, make("sqlite-third"))
    copy_of(other, new, restart=True)
    assert len(new.deliveries()) == 2


# ------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("side", ["source", "target"])
def test_while_a_worker_holds_a_lease_nothing_is_copied(make: Make, side: str) -> None:
    old, new = make("sqlite"), make("postgres")
    old.publish()
    with_worker = old if side == "source" else new
    worker = with_worker.worker(name="busy-1")
    for attempt in (copy, plan):
        with pytest.raises(InvalidAct, match=f"a worker holds a lease on the {side}: busy-1"):
            attempt(old.store.database, new.store.database)
    with_worker.store.leases.end(worker, lost=False)
    assert copy_of(old, new)["todoku_delivery"].rows == 1


@pytest.mark.parametrize("names", [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_a_target_with_rows_of_its_own_is_left_alone(make: Make, names: tuple[str, str]) -> None:
    old, new = map(make, names)
    old.publish(2)
    new.store.queues.pause("mail", SOMEBODY, paused=True)
    with pytest.raises(InvalidAct, match="the target has other rows: 1 in todoku_queue"):
        copy_of(old, new)
    with pytest.raises(InvalidAct, match="other rows"):
        copy_of(old, new, restart=True)
    assert new.deliveries() == []


def test_who_publishes_into_an_unfinished_target_is_found_and_keeps_his_rows(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    old.publish(3)
    with armed("copy.after_commit", lose), pytest.raises(StoreError, match="failpoint"):
        copy_of(old, new)
    early = new.publish()[0]
    for restart in (False, True):
        with pytest.raises(InvalidAct, match="other rows"):
            copy_of(old, new, restart=restart)
    assert new.store.messages.story(early.id) is not None


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_a_database_is_not_copied_into_itself(make: Make, name: str) -> None:
    one, same = make(name), make(name)
    with pytest.raises(InvalidAct, match="same database"):
        copy_of(one, same)


def test_a_schema_of_another_version_is_not_copied(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    for world, side in ((new, "target"), (old, "source")):
        world.sql("delete from todoku_migration where version = (select max(version) from todoku_migration)")
        with pytest.raises(SchemaError, match=f"the {side} has schema version"):
            copy_of(old, new)


def test_a_value_that_postgresql_cannot_hold_is_named_and_nothing_of_its_batch_is_there(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    old.publish(3)
    old.sql("update todoku_message set topic = ? where seq = 2", "a\x00b")
    with pytest.raises(InvalidAct, match=r"cannot store a row of todoku_message: .*line 2, column topic"):
        copy_of(old, new)
    assert new.sql("select count(*) from todoku_message") == [(0,)]
    old.sql("update todoku_message set topic = 'ab' where seq = 2")
    assert copy_of(old, new)["todoku_message"].rows == 3


def test_a_plan_says_what_is_there_and_changes_nothing(make: Make) -> None:
    old, new = make("sqlite"), make("postgres")
    lived_in(old)
    whole = {part.table: (part.rows, part.there) for part in plan(old.store.database, new.store.database)}
    assert whole["todoku_message"] == (13, 0)
    with armed("copy.after_commit", lose):
        for _ in range(2):
            with pytest.raises(StoreError, match="failpoint"):
                copy_of(old, new)
    there = {part.table: part.there for part in plan(old.store.database, new.store.database)}
    assert there["todoku_attempt"] == whole["todoku_attempt"][0] > 0
    assert there["todoku_delivery"] == 0
