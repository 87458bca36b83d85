"""Transactional handlers: their writes, the inbox mark and the settle are one commit (I6, H21)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.support.crew import Crew, until
from tests.support.world import World
from todoku.core.outcome import Done, Retry
from todoku.engine.context import Context
from todoku.store.claims import Transacted
from todoku.store.failpoint import armed, lose


@pytest.fixture
def effects(world: World) -> Any:
    """A table of the application's own, and how to count it."""
    world.sql("create table effect (message text not null)")

    def count() -> int:
        ((number,),) = world.sql("select count(*) from effect")
        return int(number)

    return count


def insert(world: World, ctx: Context) -> None:
    mark = "?" if world.backend == "sqlite" else "%s"
    ctx.tx.execute(f"insert into effect values ({mark})", (str(ctx.message_id),))


def marks(world: World) -> int:
    ((number,),) = world.sql("select count(*) from todoku_inbox")
    return int(number)


def test_I6_writes_mark_and_settle_are_one_commit(world: World, crew: Crew, effects: Any) -> None:
    crew.handles("warehouse", lambda ctx: insert(world, ctx), run="thread", transactional=True)
    world.publish(5)
    assert crew.drain() == 5
    assert (effects(), marks(world), len(world.history())) == (5, 5, 5)


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_I6_only_done_commits(world: World, crew: Crew, effects: Any, how: str) -> None:
    def half(ctx: Context) -> Any:
        insert(world, ctx)
        if how == "raises":
            raise RuntimeError("half way")
        return Retry(after=60)

    crew.handles("warehouse", half, run="thread", transactional=True)
    world.publish()
    crew.drain()
    assert (effects(), marks(world)) == (0, 0)
    assert [row.status for row in world.deliveries()] == ["failed"]


def test_I6_a_worker_that_lost_its_row_rolls_back(world: World, effects: Any) -> None:
    """H21: the zombie's writes are gone, and the ledger has not heard of a success."""
    world.publish(idempotency_key="k")
    (claim,) = world.claim(world.worker(lease=30))
    world.advance(31)
    world.store.leases.reclaim()

    def work(connection: Any) -> Done:
        connection.execute("insert into effect values ('zombie')")
        return Done()

    assert world.store.claims.transact(claim, work, limit=10) is Transacted.LOST
    assert (effects(), marks(world)) == (0, 0)
    assert world.sql("select count(*) from todoku_ledger where state = 'succeeded'") == [(0,)]


@pytest.mark.parametrize("side", ["before", "after"])
def test_I6_a_reply_lost_around_the_commit_doubles_nothing(world: World, crew: Crew, effects: Any, side: str) -> None:
    left = [1]

    def lose_once() -> None:
        if left[0]:
            left[0] -= 1
            lose()

    crew.handles("warehouse", lambda ctx: insert(world, ctx), run="thread", transactional=True)
    world.publish(3)
    with armed(f"transact.{side}_commit", lose_once):
        crew.drain()
    world.advance(60)
    crew.drain()
    assert (effects(), len(world.history())) == (3, 3)


def test_a_session_of_sqlalchemy_works_in_the_same_transaction(world: World, crew: Crew, effects: Any) -> None:
    """`ctx.session(Session)`: flushed before the settle; its commit() ends nothing, its rollback() only its own."""

    def by_session(ctx: Context) -> None:
        session = ctx.session(Session)
        session.execute(text("insert into effect values ('undone')"))
        session.rollback()
        session.execute(text("insert into effect values (:id)"), {"id": str(ctx.message_id)})
        session.commit()

    crew.handles("warehouse", by_session, run="thread", transactional=True)
    world.publish(2)
    assert crew.drain() == 2
    assert world.sql("select count(*) from effect where message <> 'undone'") == [(2,)]
    assert effects() == 2


def test_a_handler_that_ends_its_own_transaction_is_told(world: World, crew: Crew, effects: Any) -> None:
    def commits(ctx: Context) -> None:
        ctx.tx.commit()

    crew.handles("warehouse", commits, run="thread", transactional=True)
    world.publish()
    crew.drain()
    (row,) = world.deliveries()
    assert row.status == "failed"
    assert "todoku does" in (row.error or "")


def test_H21_on_sqlite_such_a_handler_holds_the_write_lock_for_a_quarter_of_the_lease_at_most(
    sqlite_url: str,
) -> None:
    """H21: the lease is kept, and others write again, however long the handler thinks."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    crew = Crew(world)
    started, others_wrote = threading.Event(), threading.Event()

    def thinks(ctx: Context) -> None:
        ctx.tx.execute("create table if not exists thought (id)")
        started.set()
        assert others_wrote.wait(60)
        ctx.tx.execute("insert into thought values (1)")

    crew.handles("warehouse", thinks, run="thread", transactional=True)
    world.publish()
    try:
        with crew.running(lease_sec=8.0) as worker:
            assert started.wait(30)
            first = worker.health().worker_id
            world.sql("create table somebody_elses (id)")  # while the handler thinks
            others_wrote.set()
            until(lambda: [row.status for row in world.deliveries()] == ["failed"], what="the failed attempt")
            assert worker.health().worker_id == first
        (row,) = world.deliveries()
        assert "write lock" in (row.error or "")
    finally:
        world.close()


def test_a_handler_without_transactional_has_no_transaction(world: World, crew: Crew) -> None:
    def asks(ctx: Context) -> None:
        ctx.tx.execute("select 1")

    crew.handles("warehouse", asks, run="thread")
    world.publish()
    crew.drain()
    (row,) = world.deliveries()
    assert "transactional=True" in (row.error or "")


def test_I4_a_handler_whose_transaction_cannot_be_opened_has_not_started(
    world: World, crew: Crew, effects: Any
) -> None:
    """No connection to be had, or the write lock busy: given back, with its attempt, and run later."""
    crew.handles("warehouse", lambda ctx: insert(world, ctx), run="thread", transactional=True)
    world.publish(2)
    worker = crew.worker(concurrency=1)
    opened, left = worker._executor.store.database.open_transaction, [2]  # type: ignore[attr-defined]

    def crowded(limit: float) -> Any:
        if left[0]:
            left[0] -= 1
            lose()
        return opened(limit)

    worker._executor.store.database.open_transaction = crowded  # type: ignore[attr-defined]
    asyncio.run(worker.run(until_idle=True))
    assert left == [0]
    assert {(row.status, row.attempts) for row in world.deliveries()} <= {("pending", 0)}
    world.advance(5)
    crew.drain()
    assert effects() == 2
    assert {row.attempts for row in world.history()} == {1}
