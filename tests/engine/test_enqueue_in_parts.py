"""Many messages are stored in parts while the next part is built: one commit, or nothing (decision 43).

SQLite has no parts; what holds for them holds there too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psycopg
import pytest

import todoku
from tests.conformance.test_pgbouncer import pooled
from tests.support.world import World
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, IdempotencyConflict, InvalidMessage, StoreError
from todoku.core.sealed import format_master_key
from todoku.core.topic_pattern import Route
from todoku.engine.jobs.job import Call, CallDrafts
from todoku.engine.publish import MessageOptions
from todoku.testing import empty

PART = 10
MANY = 3 * PART + 5
EVERYTHING = ("message", "delivery", "ledger", "lane", "label", "data_key")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.engine.outbox.PART", PART)
    monkeypatch.setattr("todoku.store.publish_parts.PART", PART)


@pytest.fixture
def box(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[todoku.App]:
    """An App with one connection, so that each test goes on with the connection of what failed before."""
    monkeypatch.setenv("TODOKU_CONNECTIONS", "1")
    monkeypatch.setenv("TODOKU_LOCK_TIMEOUT_SEC", "0.3")
    monkeypatch.setenv("TODOKU_MAX_PAYLOAD_BYTES", "1000")
    box = todoku.App(world.url)
    yield box
    box.close()


@pytest.fixture
def job(box: todoku.App) -> Any:
    return declared(box)


def declared(box: todoku.App) -> Any:
    @box.job
    def counted(n: int, text: str = "") -> None:
        """Nothing to do."""

    return counted


@pytest.fixture
def postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A database with parts; its Apps wait for a lock as long as a test can."""
    monkeypatch.setenv("TODOKU_LOCK_TIMEOUT_SEC", "2")
    world = World("postgres", postgres_url)
    yield world
    world.close()


def calls(job: Any, number: int = MANY) -> list[Call[Any]]:
    return [job.call(n) for n in range(number)]


def stored(world: World) -> dict[str, int]:
    """Rows that others see, by table; without tables that are empty."""
    counts = {name: world.sql(f"select count(*) from todoku_{name}")[0][0] for name in EVERYTHING}
    return {name: count for name, count in counts.items() if count}


def goes_on(world: World, box: todoku.App, job: Any) -> bool:
    """Nothing was stored, and the same App stores the next."""
    before = stored(world)
    box.enqueue_many(calls(job), tx=None)
    return before == {} and stored(world) == {"message": MANY, "delivery": MANY}


def test_I1_all_parts_are_stored_by_one_transaction(world: World, box: todoku.App, job: Any) -> None:
    handles = box.enqueue_many(calls(job), tx=None)
    column = "payload" if world.backend == "sqlite" else "payload::text"
    found = dict(world.sql(f"select cast(id as text), {column} from todoku_message"))
    assert [found[str(handle.id)] for handle in handles] == [f'{{"n":{n}}}' for n in range(MANY)]
    if world.backend == "postgres":
        statements, transactions = "count(distinct created_at)", "count(distinct xmin::text)"
        assert world.sql(f"select {statements}, {transactions} from todoku_message") == [(4, 1)]
    assert box.drain() == MANY


def test_messages_have_the_times_at_which_their_parts_were_stored(world: World, box: todoku.App) -> None:
    box.route("order.*", to="warehouse")
    messages = box.publish_many([("order.created", {"n": n}) for n in range(MANY)], tx=None)
    rows = {row.message_id: row.created_at for row in world.deliveries()}
    assert [rows[message.id] for message in messages] == [message.created_at for message in messages]


@pytest.mark.parametrize("place", [0, PART, MANY - 1])
def test_I1_a_message_that_cannot_be_built_leaves_nothing(world: World, box: todoku.App, job: Any, place: int) -> None:
    wrong = calls(job)
    wrong[place] = job.call(place, "x" * 1000)
    with pytest.raises(InvalidMessage, match="1000 are allowed"):
        box.enqueue_many(wrong, tx=None)
    assert goes_on(world, box, job)


def test_I1_an_iterable_that_raises_leaves_nothing(world: World, box: todoku.App, job: Any) -> None:
    def failing() -> Iterator[Call[Any]]:
        yield from calls(job)
        raise LookupError

    with pytest.raises(LookupError):
        box.enqueue_many(failing(), tx=None)
    assert goes_on(world, box, job)


def test_an_iterable_may_use_the_only_connection_itself(world: World, box: todoku.App, job: Any) -> None:
    """No transaction is open while code of the application runs."""

    def publishing() -> Iterator[Call[Any]]:
        for call in calls(job):
            job.enqueue(0)
            yield call

    box.enqueue_many(publishing(), tx=None)
    assert stored(world) == {"message": 2 * MANY, "delivery": 2 * MANY}


@pytest.mark.postgres
@pytest.mark.parametrize("refused", [0, PART, MANY - 1])
def test_I1_a_part_that_the_server_refuses_leaves_nothing(postgres: World, refused: int) -> None:
    """The parts that were sent after it are not run."""
    box = todoku.App(postgres.url)
    box.route("order.*", to="warehouse")
    postgres.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;"
        " create trigger refuse before insert on todoku_message for each row"
        f" when (new.payload->>'n' = '{refused}') execute function refuse()"
    )
    with pytest.raises(StoreError, match="refused"):
        box.publish_many([("order.created", {"n": n}) for n in range(MANY)], tx=None)
    assert stored(postgres) == {}
    box.publish_many([("order.created", {"n": MANY})] * MANY, tx=None)
    assert stored(postgres) == {"message": MANY, "delivery": MANY}
    box.close()


def test_I1_a_caller_that_is_interrupted_leaves_nothing(
    world: World, box: todoku.App, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(way: str) -> Any:
        build = getattr(CallDrafts, way)

        def building(self: CallDrafts, start: int, stop: int) -> Any:
            if stop > 2 * PART:
                raise KeyboardInterrupt
            return build(self, start, stop)

        return building

    with monkeypatch.context() as patch:
        for way in ("alike", "build"):
            patch.setattr(CallDrafts, way, interrupted(way))
        with pytest.raises(KeyboardInterrupt):
            box.enqueue_many(calls(job), tx=None)
    assert goes_on(world, box, job)


@pytest.mark.postgres
async def test_I1_a_cancelled_caller_leaves_nothing_and_waits_for_its_thread(postgres: World) -> None:
    box = todoku.App(postgres.url)
    job = declared(box)
    with psycopg.connect(postgres.url) as other:
        other.execute("lock table todoku_message in access exclusive mode")
        enqueueing = asyncio.create_task(box.aenqueue_many(calls(job), tx=None))
        await asyncio.to_thread(postgres.until_blocked)
        enqueueing.cancel()
        await asyncio.sleep(0)
        assert not enqueueing.done()  # its thread waits for the lock
    with pytest.raises(asyncio.CancelledError):
        await enqueueing
    assert await asyncio.to_thread(goes_on, postgres, box, job)
    box.close()


@pytest.mark.postgres
def test_I1_a_lock_that_is_not_had_leaves_nothing(postgres: World) -> None:
    box = todoku.App(postgres.url)
    job = declared(box)
    with psycopg.connect(postgres.url) as other:
        other.execute("lock table todoku_delivery in access exclusive mode")
        with pytest.raises(DatabaseBusy):
            box.enqueue_many(calls(job), tx=None)
    assert goes_on(postgres, box, job)
    box.close()


@pytest.mark.postgres
def test_I1_a_connection_that_breaks_leaves_nothing(postgres: World) -> None:
    box = todoku.App(postgres.url)
    job = declared(box)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(postgres.url) as other:
        other.execute("lock table todoku_delivery in access exclusive mode")
        enqueueing = pool.submit(box.enqueue_many, calls(job), tx=None)
        postgres.until_blocked()
        waiting = "datname = current_database() and wait_event_type = 'Lock'"
        other.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {waiting}")
        with pytest.raises(DatabaseUnavailable):
            enqueueing.result(60)
    assert goes_on(postgres, box, job)
    box.close()


@pytest.mark.postgres
def test_parts_are_stored_through_a_pooler_of_transactions(postgres: World) -> None:
    with pooled(postgres.url) as through:
        box = todoku.App(through)
        assert goes_on(postgres, box, declared(box))
        box.close()


# ---------------------------------------------------------------------------------- what needs more than an insert


def mixed(job: Any, options: dict[str, Any]) -> list[Call[Any]]:
    """Calls without options, then as many with: the parts before them are plain."""
    return [*calls(job, 2 * PART + 1), *calls(job.using(**options), 2 * PART)]


def test_I5_a_key_that_was_used_is_found_from_any_part(world: World, box: todoku.App, job: Any) -> None:
    first = job.using(idempotency_key="k").enqueue(0)
    given = [*calls(job, 2 * PART + 1), job.using(idempotency_key="k").call(0), *calls(job, PART)]
    handles = box.enqueue_many(given, tx=None)
    assert [place for place, handle in enumerate(handles) if handle.duplicate] == [2 * PART + 1]
    assert handles[2 * PART + 1].id == first.id
    assert stored(world) == {"message": 1 + len(given) - 1, "delivery": len(given), "ledger": 1}


def test_I5_a_conflict_in_any_part_leaves_nothing_else(world: World, box: todoku.App, job: Any) -> None:
    job.using(idempotency_key="k").enqueue(0)
    with pytest.raises(IdempotencyConflict):
        box.enqueue_many([*calls(job, 2 * PART + 1), job.using(idempotency_key="k").call(1)], tx=None)
    assert stored(world) == {"message": 1, "delivery": 1, "ledger": 1}


def test_I10_ordered_messages_of_any_part_are_in_their_lane(world: World, box: todoku.App) -> None:
    ran: list[int] = []

    @box.job(ordered=True)
    def in_turn(n: int) -> None:
        ran.append(n)

    plain = box.job("plain")(lambda: None)
    given: list[Call[Any]] = [plain.call() for _ in range(PART)]
    given += [in_turn.using(key="lane").call(n) for n in range(2 * PART)]
    box.enqueue_many(given, tx=None)
    assert stored(world) == {"message": 3 * PART, "delivery": 3 * PART, "lane": 1}
    box.drain()
    assert ran == list(range(2 * PART))


def test_keys_with_a_limit_and_labels_work_in_any_part(world: World, box: todoku.App) -> None:
    ran: list[int] = []

    @box.job(per_key=todoku.Limit(concurrency=1))
    def limited(n: int) -> None:
        ran.append(n)

    box.enqueue_many(mixed(limited, {"key": "k", "labels": ["found"]}), tx=None)
    labelled = world.sql("select label, count(*) from todoku_label group by label")
    assert labelled == [("found", 2 * PART)]
    box.drain()
    assert sorted(ran) == sorted([*range(2 * PART + 1), *range(2 * PART)])


def test_encrypted_messages_of_any_part_have_one_data_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_MASTER_KEYS", format_master_key("2026-11", os.urandom(32)))
    box, ran = todoku.App(world.url), []

    @box.job(encrypted=True)
    def secret(n: int) -> None:
        ran.append(n)

    box.enqueue_many(calls(secret), tx=None)
    assert stored(world) == {"message": MANY, "delivery": MANY, "data_key": 1}
    box.drain()
    box.close()
    assert sorted(ran) == list(range(MANY))


# ---------------------------------------------------------------------------------- what is sent as columns

TOLD = (
    "m.topic, m.type, m.key, m.content_type, m.headers, m.labels, m.scope, m.key_hash, m.digest, d.destination,"
    " d.queue, d.lane is null, d.gate is null, d.priority, d.status, d.attempts, d.max_attempts, d.epoch, d.timeout"
)
"""What is stored but ids, times and the payload, which may be encrypted."""


@pytest.mark.parametrize(
    ("declared", "given", "is_alike"),
    [
        pytest.param({}, {}, True, id="nothing"),
        pytest.param({}, {"priority": 3, "headers": {"a": "b"}, "key": "k"}, True, id="what all of them have"),
        pytest.param({}, {"idempotency_key": "k"}, False, id="an idempotency key"),
        pytest.param({"unique_for": 60}, {}, False, id="a time in which it is unique"),
        pytest.param({"ordered": True}, {"key": "k"}, False, id="a lane"),
        pytest.param({"per_key": todoku.Limit(concurrency=1)}, {"key": "k"}, False, id="a gate"),
        pytest.param({}, {"labels": ["red"]}, False, id="labels"),
        pytest.param({"search": ["n"]}, {}, False, id="a searched field"),
        pytest.param({"schema": {"type": "object"}}, {}, False, id="a schema"),
        pytest.param({"encrypted": True}, {}, False, id="a data key"),
    ],
)
def test_calls_are_alike_only_if_each_has_nothing_of_its_own_and_are_stored_as_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch, declared: Any, given: Any, is_alike: bool
) -> None:
    """I1: messages that differ in nothing but ids and payloads are sent as columns; whatever more there is, is kept."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", format_master_key("2026-11", os.urandom(32)))
    box, ran = todoku.App(world.url), list[int]()

    @box.job(**declared)
    def job(n: int) -> None:
        ran.append(n)

    using, numbers = job.using(**given), [0] * MANY if "idempotency_key" in given else [*range(MANY)]
    many = [using.call(n) for n in numbers]

    def outcome(handles: list[Any]) -> Any:
        rows = world.sql(
            f"select {TOLD} from todoku_message m join todoku_delivery d on message_seq = seq order by seq"
        )
        counts, duplicates = stored(world), [handle.duplicate for handle in handles]
        ran.clear()
        box.drain()
        empty(box)
        return sorted(ran), counts, rows, duplicates

    assert (CallDrafts(many).alike(0, MANY) is not None) is is_alike
    together = outcome(box.enqueue_many(many, tx=None))
    assert together == outcome([using.enqueue(n) for n in numbers])
    assert together[0] == sorted(set(numbers))
    box.close()


def test_events_whose_key_is_in_their_payloads_are_not_alike(box: todoku.App) -> None:
    """I10: each is read, for the lane that it belongs to."""
    plain = Route(pattern="**", destination="table", queue="table")

    def is_alike(route: Route) -> bool:
        prepared = box.outbox.prepare("order.created", MessageOptions(), [route])
        return box.outbox.alike(prepared, ['{"n":1}', '{"n":2}']) is not None

    assert is_alike(plain)
    assert not is_alike(msgspec.structs.replace(plain, key="n"))
