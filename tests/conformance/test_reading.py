"""Looking: counts that say how good they are, listings that miss nothing, the whole story of a message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.errors import InvalidMessage
from todoku.core.status import Status
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.deliveries import Delivery, Filter
from todoku.store.statistics import Counts

HOUR = 3600.0


# ----------------------------------------------------------------------------------------------- counts


def test_counts_of_an_empty_store_are_zero_and_exact(world: World) -> None:
    assert world.store.statistics.counts() == Counts(rows=(), succeeded=0, exact=True)


def test_counts_are_exact_when_there_are_few(world: World) -> None:
    """DESIGN §5: by status, destination and reason."""
    world.publish(7, to=("a", "b"))
    claims = world.claim(world.worker(lease=HOUR), limit=8, destinations=["a"])
    world.settle(claims[:1])
    world.settle(claims[1:3], failed("TIMEOUT"))
    world.settle(claims[3:6], aborted("HTTP_4XX"))

    counts = world.store.statistics.counts()
    assert counts.exact
    assert counts.age == 0
    found = {(row.status, row.destination, row.reason): row.number for row in counts.rows}
    assert found == {
        ("sending", "a", ""): 1,
        ("failed", "a", "TIMEOUT"): 2,
        ("aborted", "a", "HTTP_4XX"): 3,
        ("pending", "b", ""): 7,
    }
    assert {status: counts.of(status) for status in Status} == {
        Status.PENDING: 7, Status.SENDING: 1, Status.SUCCEEDED: 1, Status.FAILED: 2, Status.ABORTED: 3,
    }  # fmt: skip


def fill(world: World, number: int, *, first: int = 1, status: str = "'pending'") -> None:
    """Insert deliveries by SQL, with ids from `first` on. `status` is an expression over n = 0, 1, 2 …"""
    series = {
        "postgres": f"select n from generate_series(0, {number - 1}) as s(n)",
        "sqlite": "with recursive s(n) as (select 0 union all select n + 1 from s"
        f" where n < {number - 1}) select n from s",
    }
    clock = "todoku_now()" if world.backend == "postgres" else str(round(world.store.ping() * 1e6))
    world.sql(
        "insert into todoku_delivery (id, message_seq, destination, queue, priority, status, max_attempts,"
        "                             next_run_at, updated_at)"
        f" select {first} + n, {first} + n, 'warehouse', 'warehouse', 0, {status}, 6, {clock}, {clock}"
        f" from ({series[world.backend]}) as s"
    )


MIX = "case when n % 10 < 5 then 'pending' when n % 10 < 8 then 'failed' else 'aborted' end"


@pytest.mark.slow
def test_counts_of_300_000_are_sampled_remembered_and_told_with_their_age(world: World) -> None:
    """DESIGN §5: sampled, cached, and shown with their age, because ten million rows are not counted on each look."""
    fill(world, 300_000, status=MIX)
    counts = world.store.statistics.counts(max_age=60)
    assert not counts.exact
    assert counts.age == 0
    assert counts.of("pending") == pytest.approx(150_000, rel=0.15)
    assert counts.of("failed") == pytest.approx(90_000, rel=0.15)
    assert counts.of("aborted") == pytest.approx(60_000, rel=0.15)

    world.advance(30)
    again = world.store.statistics.counts(max_age=60)
    assert (again.rows, again.exact) == (counts.rows, False)
    assert 30 <= again.age <= 60
    assert world.store.statistics.counts(max_age=20).age == 0  # too old for this one: counted anew
    assert world.store.statistics.counts().age == 0


@pytest.mark.slow
def test_sampled_counts_hold_when_old_rows_lie_far_behind(world: World) -> None:
    """DESIGN §5: ids are sparse: a dead letter of last year, fifty million deliveries done since, and the backlog."""
    fill(world, 10, first=1, status="'aborted'")
    fill(world, 150_000, first=50_000_000, status="case when n < 50000 then 'failed' else 'pending' end")
    counts = world.store.statistics.counts()
    assert not counts.exact
    assert counts.of("pending") == pytest.approx(100_000, rel=0.15)
    assert counts.of("failed") == pytest.approx(50_000, rel=0.15)


@pytest.mark.slow
def test_a_few_dead_letters_among_many_deliveries_are_not_overlooked(world: World) -> None:
    """DESIGN §8: the alert fires at the first dead letter: a sample would say none, or hundreds."""
    fill(world, 150_000, status="case when n in (7, 77777) then 'aborted' else 'pending' end")
    counts = world.store.statistics.counts()
    assert not counts.exact
    assert counts.of("aborted") == 2
    assert counts.of("pending") == pytest.approx(150_000, rel=0.15)


@pytest.mark.slow
def test_a_long_history_is_estimated_and_says_so(world: World) -> None:
    """DESIGN §5: `exact` speaks for all the numbers: also for the succeeded ones."""
    series = {
        "postgres": "generate_series(1, 150000) as s(n)",
        "sqlite": "(with recursive s(n) as (select 1 union all select n + 1 from s where n < 150000) select n from s)",
    }
    clock = "todoku_now()" if world.backend == "postgres" else str(round(world.store.ping() * 1e6))
    world.sql(
        "insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,"
        f" replay_count) select {clock}, n, 1, n, 'warehouse', 'warehouse', 1, 0 from {series[world.backend]}"
    )
    counts = world.store.statistics.counts()
    assert counts.succeeded == pytest.approx(150_000, rel=0.15)
    assert not counts.exact or counts.succeeded == 150_000


# ------------------------------------------------------------------------------------------------- find


def three_kinds(world: World) -> dict[str, Delivery]:
    """Three deliveries that differ in everything: one waits, one is dead, one is done."""
    world.publish(topic="order.created", to=("warehouse",), queue="slow", key="o1")
    world.publish(topic="user.created", to=("mail",), queue="fast", key="u1")
    claims = world.claim(world.worker(lease=HOUR), destinations=["mail"])
    world.settle(claims, aborted("HTTP_4XX"))
    world.advance(HOUR)
    world.publish(topic="invoice.sent", to=("ledger",), queue="night", key="i1")
    world.settle(world.claim(world.worker(lease=HOUR), destinations=["ledger"]))
    (done,) = world.history()
    waiting, dead = world.deliveries()
    return {"waiting": waiting, "dead": dead, "done": done}


EACH_FILTER: dict[str, Any] = {
    "ids": lambda row: {"ids": (row.id, 999_999)},
    "message_id": lambda row: {"message_id": row.message_id},
    "status": lambda row: {"status": row.status},
    "topic": lambda row: {"topic": row.topic},
    "destination": lambda row: {"destination": row.destination},
    "queue": lambda row: {"queue": row.queue},
    "key": lambda row: {"key": row.key},
    "since_until": lambda row: {"since": row.updated_at, "until": row.updated_at + timedelta(microseconds=1)},
}


def test_each_filter_finds_its_own_and_nothing_else(world: World) -> None:
    """Port: `status="succeeded"` looks in the history, anything else among the others."""
    for kind, row in three_kinds(world).items():
        for name, filter_of in EACH_FILTER.items():
            which = Filter(**{**({"status": "succeeded"} if kind == "done" else {}), **filter_of(row)})
            assert world.store.deliveries.find(which).items == (row,), (name, kind)


def test_the_reason_finds_dead_letters_and_no_success(world: World) -> None:
    kinds = three_kinds(world)
    assert world.store.deliveries.find(Filter(reason="HTTP_4XX")).items == (kinds["dead"],)
    assert world.store.deliveries.find(Filter(reason="HTTP_4XX", status="succeeded")).items == ()
    assert world.store.deliveries.find(Filter(reason="NO_SUCH")).items == ()


def test_filters_are_all_to_be_met(world: World) -> None:
    kinds = three_kinds(world)
    assert world.store.deliveries.find(Filter(topic="user.created", status="aborted")).items == (kinds["dead"],)
    assert world.store.deliveries.find(Filter(topic="user.created", status="pending")).items == ()


def test_a_found_delivery_tells_where_it_stands(world: World) -> None:
    (message,) = world.publish(key="o1", priority=3, max_attempts=4, delay=60, queue="slow")
    (row,) = world.store.deliveries.find(Filter()).items
    assert (row.message_id, row.topic, row.key, row.destination) == (message.id, "order.created", "o1", "warehouse")
    assert (row.queue, row.priority, row.status, row.lane) == ("slow", 3, "pending", None)
    assert (row.attempts, row.max_attempts, row.lost, row.snoozes, row.replay_count, row.epoch) == (0, 4, 0, 0, 0, 0)
    assert (row.worker, row.cancel_requested, row.reason, row.error) == (None, False, None, None)
    assert row.created_at == message.created_at
    assert row.next_run_at == message.created_at + timedelta(seconds=60)


# ------------------------------------------------------------------------------------------- pagination


def pages(world: World, which: Filter, size: int) -> Iterator[tuple[Delivery, ...]]:
    cursor: str | None = None
    while True:
        page = world.store.deliveries.find(which, cursor=cursor, limit=size)
        yield page.items
        if page.next is None:
            return
        cursor = page.next


def test_paging_visits_every_delivery_once_while_others_arrive(world: World) -> None:
    """Keyset: newest first, from where the page before ended; rows that come meanwhile shift nothing."""
    world.publish(47)
    expected = [row.id for row in reversed(world.deliveries())]
    visited = []
    for page in pages(world, Filter(), 5):
        assert len(page) <= 5
        visited += [row.id for row in page]
        world.publish(3)
    assert visited == expected


def test_paging_visits_every_success_once_while_others_arrive(world: World) -> None:
    """The same in the history, where deliveries arrive in another order than their messages were published in."""
    world.publish(60)
    claims = world.claim(world.worker(lease=HOUR))
    late, early = claims[::4], [claim for place, claim in enumerate(claims) if place % 4 != 0]
    world.settle(early)
    expected = {claim.id for claim in early}
    visited: list[int] = []
    for page in pages(world, Filter(status="succeeded"), 7):
        visited += [row.id for row in page]
        world.settle(late[:1])
        late = late[1:]
    assert visited == sorted(set(visited), reverse=True)
    assert expected <= set(visited)


def test_paging_visits_every_delivery_of_a_fan_out_once(world: World) -> None:
    """Several rows of one message: the cursor in the history is (message, delivery), not the message alone."""
    world.publish(5, to=("a", "b", "c"))
    world.settle(world.claim(world.worker(lease=HOUR)))
    visited = [row.id for page in pages(world, Filter(status="succeeded"), 2) for row in page]
    assert len(visited) == len(set(visited)) == 15


def test_the_last_page_has_no_cursor(world: World) -> None:
    world.publish(4)
    assert world.store.deliveries.find(Filter(), limit=4).next is None
    assert world.store.deliveries.find(Filter(), limit=3).next is not None
    assert world.store.deliveries.find(Filter(destination="nowhere")) == world.store.deliveries.find(
        Filter(status="succeeded")
    )


@pytest.mark.parametrize("status", [None, "succeeded"])
def test_a_cursor_that_is_garbage_is_a_clear_error(world: World, status: str | None) -> None:
    for cursor in ("", ".", "garbage", "1.2.3", "-1", "1.-1", "1;drop table todoku_delivery", "٣", "9" * 30, "\0"):
        with pytest.raises(InvalidMessage, match="no cursor") as told:
            world.store.deliveries.find(Filter(status=status), cursor=cursor)
        assert told.value.hint


def test_a_cursor_of_another_listing_is_a_clear_error(world: World) -> None:
    world.publish(3)
    cursor = world.store.deliveries.find(Filter(), limit=1).next
    assert cursor is not None
    with pytest.raises(InvalidMessage, match="no cursor of this listing"):
        world.store.deliveries.find(Filter(status="succeeded"), cursor=cursor)


# ------------------------------------------------------------------------------------------------ story


def test_the_story_of_a_message_tells_everything(world: World) -> None:
    """Message, each delivery wherever it is now, each failed attempt, each act of a person."""
    (message,) = world.publish(
        to=("a", "b"), key="o1", headers={"traceparent": "00-1"}, labels=["vip"], payload=lambda _: {"n": 1}
    )
    worker = world.worker(lease=HOUR)
    world.store.claims.settle([(claim, SUCCEEDED) for claim in world.claim(worker, destinations=["a"])])
    (claim,) = world.claim(worker, destinations=["b"])
    world.settle([claim], failed("TIMEOUT"))
    (claim,) = world.claim(worker, destinations=["b"])
    world.settle([claim], aborted("HTTP_4XX"))
    world.store.acts.replay(Filter(message_id=message.id), Signed("maiko", "fixed"))
    world.store.acts.cancel(Filter(message_id=message.id), Signed("kenji", "not needed"))

    story = world.store.messages.story(message.id)
    assert story is not None
    told = story.message
    assert (told.id, told.topic, told.type, told.key) == (message.id, "order.created", "order.created", "o1")
    assert (told.payload, told.payload_bytes, told.content_type) == ('{"n":1}', None, "application/json")
    assert (told.headers, told.labels) == ('{"traceparent":"00-1"}', '["vip"]')
    assert told.created_at == message.created_at
    assert {(row.destination, row.status, row.reason) for row in story.deliveries} == {
        ("a", "succeeded", None), ("b", "aborted", "CANCELLED"),
    }  # fmt: skip
    assert [(row.delivery_id, row.number, row.reason) for row in story.attempts] == [
        (claim.id, 1, "TIMEOUT"), (claim.id, 2, "HTTP_4XX"),
    ]  # fmt: skip
    assert [(act.by, act.action, act.why) for act in story.audit] == [
        ("maiko", "replay", "fixed"), ("kenji", "cancel", "not needed"),
    ]  # fmt: skip


def test_a_message_nobody_knows_has_no_story(world: World) -> None:
    assert world.store.messages.story(uuid4()) is None
    assert world.store.deliveries.result(1) is None
    assert world.store.ledger.entry("publish:x", "y") is None


def test_the_clock_is_the_databases(world: World) -> None:
    """I12: `ping` tells it, and everything that is read is told in it."""
    before = world.store.ping()
    world.advance(HOUR)
    world.publish()
    after = world.store.ping()
    assert after >= before + HOUR
    (row,) = world.deliveries()
    assert row.created_at is not None
    assert moment(before + HOUR) <= row.created_at <= moment(after)


def test_reading_changes_nothing(world: World) -> None:
    world.publish(3)
    world.settle(world.claim(world.worker(lease=HOUR), limit=1), Settlement(status=Status.SUCCEEDED, result="1"))
    before = (world.deliveries(), world.history())
    world.store.statistics.counts(max_age=60)
    for row in before[0]:
        assert row.message_id is not None
        world.store.messages.story(row.message_id)
    world.store.acts.replay(Filter(), SOMEBODY, dry_run=True)
    assert (world.deliveries(), world.history()) == before


def test_the_newest_dead_letters_are_found_among_others(world: World) -> None:
    world.publish(3, to=["a"])
    world.settle(world.claim(world.worker(lease=HOUR), destinations=["a"]), aborted("HTTP_4XX"))
    world.publish(5, to=["b"])
    assert [row.id for row in world.store.deliveries.newest_dead(2)] == [3, 2]
    assert {(row.status, row.reason) for row in world.store.deliveries.newest_dead(9)} == {("aborted", "HTTP_4XX")}


def test_matching_deliveries_are_counted_up_to_a_bound(world: World) -> None:
    world.publish(3, topic="x", to=["a"])
    world.publish(4, topic="y", to=["a"], key="k")
    count = world.store.deliveries.count
    assert [count(which, most=100) for which in (Filter(), Filter(topic="x"), Filter(key="k"), Filter(ids=(2, 5)))] == [
        7, 3, 4, 2,
    ]  # fmt: skip
    assert count(Filter(status="aborted"), most=100) == 0
    assert count(Filter(), most=5) == 5


def test_the_headers_of_many_messages_are_read_at_once(world: World) -> None:
    """S4-18: only messages that exist and have headers are returned."""
    (plain,), *named = (world.publish(headers=one) for one in (None, {"X-Correlation-Id": "c-0"}, {"a": "ü"}))
    first, second = named[0][0].id, named[1][0].id
    found = world.store.messages.headers([plain.id, first, second, uuid4()])
    read = {id: msgspec.json.decode(headers) for id, headers in found.items()}
    assert read == {first: {"X-Correlation-Id": "c-0"}, second: {"a": "ü"}}
    assert world.store.messages.headers([]) == {}


def test_a_count_with_a_bound_of_its_own_is_sampled_beyond_it_and_kept_apart(world: World) -> None:
    """A log line that nobody may read counts less than a page: what it sampled is not shown there as exact numbers."""
    world.publish(30)
    statistics = world.store.statistics
    assert statistics.counts(exactly=30).exact
    assert not statistics.counts(exactly=29).exact
    assert not statistics.counts(exactly=29, max_age=60).exact
    assert (statistics.counts(max_age=60).exact, statistics.counts(max_age=60).of("pending")) == (True, 30)
