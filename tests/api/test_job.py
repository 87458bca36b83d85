"""Jobs: a function becomes something that can be called later, in the caller's transaction or in one of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import aiosqlite
import psycopg
import pytest

import todoku
from tests.api.conftest import Attempt
from tests.engine.test_telemetry import counted
from tests.support.world import World
from todoku.store.sqlite.database import file_path

# ------------------------------------------------------------------------------------------ what is stored


def test_an_enqueued_call_is_one_message_for_one_destination(box: todoku.App, world: World) -> None:
    """The topic and the destination are the job's name; the payload is one object of the arguments."""

    @box.job
    def welcome(user_id: int, hobby: str | None = None) -> None: ...

    handle = welcome.enqueue(7, hobby="go")
    (delivery,) = world.deliveries()
    assert (delivery.message_id, delivery.topic, delivery.destination) == (handle.id, "welcome", "welcome")
    assert (delivery.queue, delivery.status, delivery.max_attempts) == ("default", "pending", 6)
    assert (handle.duplicate, handle.stored, handle.status()) == (False, True, todoku.Status.PENDING)
    story = world.store.messages.story(handle.id)
    assert story is not None
    assert story.message.payload == '{"user_id":7,"hobby":"go"}'


def test_a_default_is_not_stored_so_it_can_change(box: todoku.App, world: World, attempt: Attempt) -> None:
    @box.job
    def welcome(user_id: int, hobby: str = "chess") -> tuple[int, str]:
        return user_id, hobby

    handle = welcome.enqueue(7)
    story = world.store.messages.story(handle.id)
    assert story is not None
    assert story.message.payload == '{"user_id":7}'
    assert attempt() == [(7, "chess")]


def test_the_options_of_a_job_are_the_delivery_s(box: todoku.App, world: World) -> None:
    @box.job("mail.welcome", queue="mail", max_attempts=4, backoff=todoku.linear(minutes=5), timeout=30, ordered=True)
    def welcome() -> None: ...

    welcome.using(key="7").enqueue()
    (delivery,) = world.deliveries()
    assert (delivery.destination, delivery.queue, delivery.max_attempts) == ("mail.welcome", "mail", 4)
    assert delivery.lane is not None
    target = box.registry["mail.welcome"]
    assert (target.timeout, target.backoff, target.run) == (30.0, todoku.linear(minutes=5), "thread")


def test_using_changes_one_call_and_not_the_job(box: todoku.App, world: World) -> None:
    @box.job(queue="mail")
    def welcome() -> None: ...

    later = datetime.now(UTC) + timedelta(hours=1)
    urgent = welcome.using(queue="urgent", priority=9, key="k", max_attempts=2, timeout=5, headers={"a": "b"})
    urgent.using(at=later, labels=("x",)).enqueue()
    welcome.enqueue()
    special, plain = world.deliveries()
    assert (special.queue, special.priority, special.key, special.max_attempts) == ("urgent", 9, "k", 2)
    assert abs(special.next_run_at - later) < timedelta(milliseconds=1)
    assert (plain.queue, plain.priority, plain.key, plain.max_attempts) == ("mail", 0, None, 6)
    assert special.message_id is not None
    story = world.store.messages.story(special.message_id)
    assert story is not None
    assert (story.message.headers, story.message.labels) == ('{"a":"b"}', '["x"]')


def test_a_transaction_changes_nothing_of_the_other_options(box: todoku.App, world: World) -> None:
    """What calls have in common is checked once, also for `using(tx=…)`: none gets what was checked for another."""

    @box.job(queue="mail")
    def remind(who: str) -> None: ...

    db, urgent = world.connect(), remind.using(queue="urgent", priority=9)
    for tx in (db, None, db):
        remind.using(tx=tx).enqueue("usual")
        urgent.using(tx=tx).enqueue("urgent")
        remind.using(tx=tx).using(priority=3).enqueue("chosen")
        remind.using(tx=tx, best_effort=True).enqueue("usual")
        db.commit()
    db.close()
    found = sorted((delivery.queue, delivery.priority) for delivery in world.deliveries())
    assert found == [*[("mail", 0)] * 6, *[("mail", 3)] * 3, *[("urgent", 9)] * 3]


def test_a_delayed_call_is_not_due_yet_and_an_expired_one_never(
    box: todoku.App, world: World, attempt: Attempt
) -> None:
    @box.job
    def remind(who: str) -> str:
        return who

    remind.using(delay=timedelta(minutes=5)).enqueue("later")
    remind.using(expires=60).enqueue("soon or never")
    world.advance(120)
    assert attempt() == []
    world.advance(240)
    assert attempt() == ["later"]


def test_an_idempotency_key_makes_a_call_once(box: todoku.App, world: World) -> None:
    @box.job
    def charge(amount: int) -> None: ...

    first = charge.using(idempotency_key="order-7").enqueue(42)
    again = charge.using(idempotency_key="order-7").enqueue(42)
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(todoku.IdempotencyConflict, match="differs in: amount"):
        charge.using(idempotency_key="order-7").enqueue(43)
    assert len(world.deliveries()) == 1


# ------------------------------------------------------------------------------------------- transactions


def test_a_call_commits_with_the_caller_s_rows_or_not_at_all(box: todoku.App, world: World) -> None:
    """I2, for jobs."""

    @box.job
    def welcome(user_id: int) -> None: ...

    db = world.connect()
    gone = welcome.using(tx=db).enqueue(1)
    db.rollback()
    kept = welcome.using(tx=db).enqueue(2)
    db.commit()
    db.close()
    assert [delivery.message_id for delivery in world.deliveries()] == [kept.id]
    with pytest.raises(todoku.NoSuchMessage, match="rolled back"):
        gone.status()


async def test_async_code_awaits_the_same_call(box: todoku.App, world: World) -> None:
    @box.job
    async def welcome(user_id: int) -> None: ...

    handle = await welcome.aenqueue(1)
    assert await handle.astatus() is todoku.Status.PENDING
    many = await box.aenqueue_many([welcome.call(2), welcome.call(3)], tx=None)
    assert [delivery.message_id for delivery in world.deliveries()] == [handle.id, *(each.id for each in many)]


async def test_a_blocking_call_in_an_event_loop_says_what_to_await(box: todoku.App) -> None:
    @box.job(keep_result=True)
    async def welcome() -> None: ...

    handle = await welcome.aenqueue()
    calls: dict[str, Any] = {
        "welcome.aenqueue": welcome.enqueue,
        "box.aenqueue_many": lambda: box.enqueue_many([welcome.call()], tx=None),
        "handle.astatus": handle.status,
        "handle.aresult": handle.result,
        "handle.acancel": lambda: handle.cancel(by="me", why="test"),
        "box.apublish": lambda: box.publish("a", tx=None),
        "box.apublish_many": lambda: box.publish_many([("a", 1)], tx=None),
    }
    box.route("a", to="somebody")
    for twin, call in calls.items():
        with pytest.raises(todoku.TodokuError, match=f"await {twin}"):
            call()


def test_an_app_can_require_tx_of_jobs_too(url: str, world: World) -> None:
    box = todoku.App(url, require_tx=True)

    @box.job
    def welcome() -> None: ...

    for call in (
        welcome.enqueue,
        welcome.using(best_effort=True).enqueue,
        lambda: asyncio.run(welcome.aenqueue()),  # type: ignore[arg-type]
        lambda: box.enqueue_many([welcome.call()], tx=None),
    ):
        with pytest.raises(todoku.InvalidMessage, match="requires tx="):
            call()
    with world.connect() as db:
        welcome.using(tx=db).enqueue()
    assert len(world.deliveries()) == 1
    box.close()


def test_many_calls_are_stored_together(box: todoku.App, world: World) -> None:
    @box.job
    def square(n: int) -> int:
        return n * n

    @box.job(queue="other")
    def shout(text: str) -> str:
        return text.upper()

    handles = box.enqueue_many([square.call(1), shout.using(priority=3).call("a"), square.call(2)], tx=None)
    assert [delivery.message_id for delivery in world.deliveries()] == [handle.id for handle in handles]
    assert [delivery.priority for delivery in world.deliveries()] == [0, 3, 0]
    with pytest.raises(todoku.InvalidMessage, match="no tx"):
        box.enqueue_many([square.using(tx=object()).call(1)], tx=None)
    assert box.enqueue_many([], tx=None) == []


def test_one_wrong_call_of_many_stores_none(box: todoku.App, world: World) -> None:
    @box.job
    def square(n: int) -> int:
        return n * n

    with pytest.raises(todoku.InvalidMessage, match="n: Expected `int`, got `str`"):
        box.enqueue_many([square.call(1), square.call("2")], tx=None)  # type: ignore[arg-type]
    with pytest.raises(todoku.IdempotencyConflict):
        box.enqueue_many([square.using(idempotency_key="k").call(n) for n in (1, 2)], tx=None)
    assert world.deliveries() == []


# ---------------------------------------------------------------------------------------------- unique_for


def test_an_equal_call_within_the_window_is_a_duplicate(box: todoku.App, world: World) -> None:
    """The window runs from the first call, whatever becomes of it; after it the next call is the first of a new one."""

    @box.job(unique_for=timedelta(minutes=10))
    def report(day: str, detailed: bool = False) -> None: ...

    first = report.enqueue("monday")
    world.advance(300)
    again, other = report.enqueue("monday"), report.enqueue("tuesday")
    assert (again.id, again.duplicate) == (first.id, True)
    assert not other.duplicate
    world.advance(301)
    new = report.enqueue("monday")
    assert new.id != first.id
    assert not new.duplicate
    assert report.enqueue("monday").id == new.id


def test_a_unique_call_runs_again_in_its_next_window(box: todoku.App, world: World) -> None:
    """The effect entry of I5 belongs to idempotency keys: a job that is unique for a while is not done for ever."""

    @box.job(unique_for=60)
    def report() -> None: ...

    worker = world.worker(lease=3600)
    for _ in range(2):
        assert not report.enqueue().duplicate
        (claim,) = world.claim(worker)
        assert (claim.key_hash, claim.effect_state) == (None, None)
        world.settle([claim])
        assert report.enqueue().duplicate
        world.advance(61)
    assert len(world.history()) == 2


def test_a_rolled_back_unique_call_does_not_count(box: todoku.App, world: World) -> None:
    @box.job(unique_for=60)
    def report() -> None: ...

    db = world.connect()
    report.using(tx=db).enqueue()
    db.rollback()
    db.close()
    assert not report.enqueue().duplicate


@pytest.mark.parametrize("before", ["nothing", "a window that is over"])
@pytest.mark.parametrize("first_commits", [True, False])
def test_of_two_equal_calls_at_once_the_second_waits_for_the_first(
    box: todoku.App, world: World, first_commits: bool, before: str
) -> None:
    """Whoever comes second looks when the first has ended: a duplicate of it, or the first itself."""

    @box.job(unique_for=60)
    def report() -> None: ...

    if before == "a window that is over":
        report.enqueue()
        world.advance(61)
    db = world.connect()
    first = report.using(tx=db).enqueue()
    found: list[todoku.Handle[None]] = []
    second = threading.Thread(target=lambda: found.append(report.enqueue()))
    second.start()
    if world.backend == "postgres":
        world.until_blocked()
    db.commit() if first_commits else db.rollback()
    db.close()
    second.join(60)
    assert [handle.duplicate for handle in found] == [first_commits]
    assert (found[0].id == first.id) is first_commits


def test_a_window_that_is_over_is_forgotten(box: todoku.App, world: World) -> None:
    @box.job(unique_for=60)
    def report() -> None: ...

    report.enqueue()
    world.store.retention.prune(history_ttl=3600)
    assert world.sql("select count(*) from todoku_ledger") == [(1,)]
    world.advance(61)
    world.store.retention.prune(history_ttl=3600)
    assert world.sql("select count(*) from todoku_ledger") == [(0,)]


def test_equal_calls_of_one_batch_are_one(box: todoku.App, world: World) -> None:
    @box.job(unique_for=60)
    def report(day: str) -> None: ...

    one, two, other = box.enqueue_many([report.call("a"), report.call("a"), report.call("b")], tx=None)
    assert (two.id, two.duplicate, other.duplicate) == (one.id, True, False)
    assert len(world.deliveries()) == 2


def test_a_key_of_its_own_goes_before_uniqueness(box: todoku.App) -> None:
    @box.job(unique_for=60)
    def report() -> None: ...

    report.enqueue()
    assert not report.using(idempotency_key="again, please").enqueue().duplicate


# --------------------------------------------------------------------------------------------- best effort


def test_best_effort_never_costs_the_caller_its_own_rows(
    box: todoku.App, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-72: the user is created, whatever becomes of the enqueue; what happened is logged and counted."""

    @box.job
    def welcome(user_id: int) -> None: ...

    world.sql("create table users (id integer primary key)")
    world.sql("alter table todoku_delivery rename to todoku_delivery_away")
    db = world.connect()
    with caplog.at_level(logging.ERROR, logger="todoku"):
        before = welcome.using(tx=db, best_effort=True).enqueue(7)  # as the first statement of the transaction
        db.execute("insert into users values (7)")
        after = welcome.using(tx=db, best_effort=True).enqueue(7)
    db.commit()
    db.close()
    world.sql("alter table todoku_delivery_away rename to todoku_delivery")
    assert (before.stored, after.stored) == (False, False)
    assert world.sql("select id from users") == [(7,)]
    assert world.sql("select count(*) from todoku_message") == [(0,)]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["ENQUEUE_FAILED"] * 2
    assert counted(box.telemetry)["queue_fallback_total{best_effort}"] == 2
    with pytest.raises(todoku.NoSuchMessage):
        after.status()


def test_best_effort_in_a_transaction_is_still_one_commit(box: todoku.App, world: World) -> None:
    """A savepoint before the first statement must not become a transaction of its own (I2)."""

    @box.job
    def welcome(user_id: int) -> None: ...

    db = world.connect()
    welcome.using(tx=db, best_effort=True).enqueue(7)
    db.rollback()
    assert world.deliveries() == []
    kept = welcome.using(tx=db, best_effort=True).enqueue(7)
    db.commit()
    db.close()
    assert kept.stored
    assert [delivery.message_id for delivery in world.deliveries()] == [kept.id]


async def test_best_effort_without_tx_and_in_async_code(
    box: todoku.App, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    @box.job
    def welcome() -> None: ...

    world.sql("alter table todoku_delivery rename to todoku_delivery_away")
    with caplog.at_level(logging.ERROR, logger="todoku"):
        handle = await welcome.using(best_effort=True).aenqueue()
    world.sql("alter table todoku_delivery_away rename to todoku_delivery")
    assert not handle.stored
    assert (await welcome.using(best_effort=True).aenqueue()).stored


def test_best_effort_does_not_hide_a_mistake(box: todoku.App, world: World) -> None:
    @box.job
    def welcome(user_id: int) -> None: ...

    with pytest.raises(todoku.InvalidMessage):
        welcome.using(best_effort=True).enqueue("7")  # type: ignore[arg-type]
    with pytest.raises(todoku.TodokuError, match="tx= cannot be"):
        welcome.using(best_effort=True, tx=object()).enqueue(7)


# ---------------------------------------------------------------------------------------------- here and now


async def test_calling_a_job_runs_it_here_and_now(box: todoku.App, world: World) -> None:
    @box.job
    def square(n: int) -> int:
        """Squares."""
        return n * n

    @box.job
    async def greet(ctx: todoku.Context, name: str) -> str:
        return f"{ctx.attempt}/{ctx.max_attempts} {ctx.topic} {name}"

    @box.job(transactional=True)
    def insert(ctx: todoku.Context) -> Any:
        return ctx.tx

    assert square(3) == 9
    assert square.__doc__ == "Squares."
    assert await greet("Ada") == "1/1 greet Ada"
    assert insert.using(tx="mine")() == "mine"
    with pytest.raises(todoku.TodokuError, match="transactional=True"):
        insert()
    assert world.deliveries() == []


def test_an_unknown_job_is_refused_with_those_there_are(box: todoku.App) -> None:
    @box.job
    def welcome() -> None: ...

    assert dict(box.jobs) == {"welcome": welcome}
    assert box.jobs.get("farewell") is None
    with pytest.raises(todoku.UnknownJob, match=r"there is no job 'farewell' \(known: welcome\)"):
        box.jobs["farewell"]


def test_a_commit_of_its_own_wakes_who_waits_in_this_process(box: todoku.App, world: World) -> None:
    woken: list[str] = []
    box.outbox.wake = lambda: woken.append("now")

    @box.job
    def welcome() -> None: ...

    with world.connect() as db:
        welcome.using(tx=db).enqueue()
    assert woken == []  # not committed by us: who knows when
    welcome.enqueue()
    assert woken == ["now"]


async def test_an_async_connection_asks_for_the_async_call(box: todoku.App, url: str) -> None:
    @box.job
    def welcome() -> None: ...

    tx: Any
    if url.startswith("sqlite"):
        tx = await aiosqlite.connect(file_path(url))
    else:
        tx = await psycopg.AsyncConnection.connect(url)
    for job in (welcome.using(tx=tx), welcome.using(tx=tx, best_effort=True)):
        with pytest.raises(todoku.TodokuError, match=r"async connection \(await welcome\.aenqueue"):
            job.enqueue()
        assert (await job.aenqueue()).stored
    await tx.commit()
    await tx.close()
