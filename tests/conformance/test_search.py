"""Search: one list of unfinished and finished deliveries, newest first, with honest bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.requesting import Requesting
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.errors import InvalidMessage
from todoku.core.limit import Limit
from todoku.core.search import Criteria
from todoku.engine.diagnostics.explanation import explain
from todoku.store.deliveries import Filter
from todoku.store.search import SearchPage


def ids(found: SearchPage) -> list[int]:
    return [each.id for each in found.items]


def find(world: World, **wanted: Any) -> list[int]:
    """The numbers of what meets the criteria; everything was looked at."""
    found = world.store.search.find(Criteria(**wanted))
    assert found.complete
    assert found.next is None
    return ids(found)


@pytest.fixture
def varied(world: World) -> dict[str, int]:
    """One delivery of each status, by its status."""
    worker = world.worker(name="box:1")
    world.publish(1, topic="order.paid", key="k1", labels=["red", "payload.order_id:42"], headers={"X-Tenant": "t1"})
    done = world.claim(worker)
    world.settle(done)
    world.publish(1, topic="order.created", to=["bank"], queue="money", payload=lambda _: {"a": {"b": [True]}, "n": 7})
    dead = world.claim(worker)
    world.settle(dead, aborted("REFUSED"))
    world.publish(1, topic="order.created.late", key="k1", labels=["red", "blue"])
    retried = world.claim(worker)
    world.settle(retried, failed("TIMEOUT", delay=600))
    world.publish(1, topic="mail", payload=lambda _: {"n": 7})
    running = world.claim(worker)
    world.publish(1, topic="mail", headers={"x-tenant": "t2"})
    (waiting,) = world.deliveries(status="pending")
    return {
        "succeeded": done[0].id, "aborted": dead[0].id, "failed": retried[0].id, "sending": running[0].id,
        "pending": waiting.id,
    }  # fmt: skip


def test_everything_is_in_one_list_the_newest_first(world: World, varied: dict[str, int]) -> None:
    assert find(world) == sorted(varied.values(), reverse=True)
    for status, id in varied.items():
        assert find(world, statuses=(status,)) == [id]
    assert find(world, statuses=("aborted", "succeeded")) == [varied["aborted"], varied["succeeded"]]


@pytest.mark.parametrize(
    ("wanted", "statuses"),
    [
        ({"topics": ("order.*",)}, ["aborted", "succeeded"]),
        ({"topics": ("order.**",)}, ["failed", "aborted", "succeeded"]),
        ({"topics": ("order.created",)}, ["aborted"]),
        ({"topics": ("**",)}, ["pending", "sending", "failed", "aborted", "succeeded"]),
        ({"topics": ("orde_.*",)}, []),
        ({"topics": ("mail", "order.paid")}, ["pending", "sending", "succeeded"]),
        ({"queues": ("money",)}, ["aborted"]),
        ({"destinations": ("bank",)}, ["aborted"]),
        ({"keys": ("k1",)}, ["failed", "succeeded"]),
        ({"keys": ("k1", "k2"), "statuses": ("failed",)}, ["failed"]),
        ({"labels": (("red",),)}, ["failed", "succeeded"]),
        ({"labels": (("red",), ("blue",))}, ["failed"]),
        ({"labels": (("payload.order_id:42", "payload.order_id:k1:x"),)}, ["succeeded"]),
        ({"labels": (("re",),)}, []),
        ({"labels": (("red",),), "keys": ("other",)}, []),
        ({"reasons": ("REFUSED",)}, ["aborted"]),
        ({"reasons": ("REFUSED", "TIMEOUT")}, ["failed", "aborted"]),
        ({"payload": (("n", "7"),)}, ["sending", "aborted"]),
        ({"payload": (("n", "7"), ("a.b.0", "true"))}, ["aborted"]),
        ({"payload": (("a.b.0", "1"),)}, []),
        ({"payload": (("a.c", "1"),)}, []),
        ({"headers": (("x-tenant", "t1"),)}, ["succeeded"]),
        ({"headers": (("X-TENANT", "t2"),)}, ["pending"]),
        ({"headers": (("x-tenant", "t"),)}, []),
        ({"statuses": ("succeeded",), "reasons": ("REFUSED",)}, []),
    ],
)
def test_deliveries_are_found_by_what_they_are(
    world: World, varied: dict[str, int], wanted: dict[str, Any], statuses: list[str]
) -> None:
    assert find(world, **wanted) == [varied[status] for status in statuses]


def test_ids_find_deliveries_wherever_they_are(world: World, varied: dict[str, int]) -> None:
    assert find(world, ids=tuple(varied.values())) == sorted(varied.values(), reverse=True)
    assert find(world, ids=(10**9,)) == []
    message = world.delivery(varied["succeeded"])
    assert message is not None
    assert message.message_id is not None
    assert find(world, message_ids=(message.message_id,)) == [varied["succeeded"]]
    assert find(world, message_ids=(message.message_id,), ids=(varied["failed"],)) == [
        varied["failed"], varied["succeeded"],
    ]  # fmt: skip
    assert find(world, message_ids=(uuid4(),)) == []


def test_errors_are_searched_in_any_case_and_all_parts_must_be_there(world: World) -> None:
    world.publish(2)
    claims = world.claim(world.worker())
    refused = aborted("REFUSED")
    world.store.claims.settle([(claims[0], refused), (claims[1], failed("TIMEOUT", delay=60))])
    world.sql("update todoku_delivery set error = 'No such Card: 50% of it_' where status = 'aborted'")
    assert find(world, errors=("such card",)) == [claims[0].id]
    assert find(world, errors=("CARD", "50%")) == [claims[0].id]
    assert find(world, errors=("card", "other")) == []
    assert find(world, errors=("5_%",)) == []


def test_a_worker_finds_what_it_holds_and_what_it_did(world: World) -> None:
    world.publish(2)
    worker, other = world.worker(), world.worker()
    done, held = world.claim(worker, 1), world.claim(worker, 1)
    world.settle(done)
    assert find(world, workers=(str(worker),)) == [held[0].id, done[0].id]
    assert find(world, workers=(str(worker),), statuses=("sending",)) == [held[0].id]
    assert find(world, workers=(str(other),)) == []


def test_requests_are_found_by_their_host_and_their_headers(world: World) -> None:
    requesting = Requesting(world)
    requesting.post("https://shop.example:8443/a", headers={"X-Order": "7"})
    requesting.post("https://[2001:db8::1]/b")
    other, first = find(world)
    assert find(world, hosts=("shop.example",)) == [first] == find(world, hosts=("shop.example:8443",))
    assert find(world, hosts=("[2001:db8::1]",)) == [other]
    assert find(world, hosts=("shop.example:443",)) == [] == find(world, hosts=("shop",))
    assert find(world, headers=(("x-order", "7"),)) == [first]


def test_dead_letters_are_found_by_their_fingerprint(world: World) -> None:
    world.publish(3)
    world.settle(world.claim(world.worker()), aborted())
    first, second, third = (each.id for each in world.deliveries())
    world.sql(f"update todoku_delivery set fingerprint = 'one' where id in ({first}, {third})")
    world.sql(f"update todoku_delivery set fingerprint = 'two' where id = {second}")
    assert find(world, fingerprints=("one",)) == [third, first]
    assert find(world, fingerprints=("one",), statuses=("failed",)) == []
    assert find(world, fingerprints=("one", "two")) == [third, second, first]
    page = world.store.search.find(Criteria(fingerprints=("one",)), limit=1)
    assert ids(world.store.search.find(Criteria(fingerprints=("one",)), limit=1, cursor=page.next)) == [first]


def test_since_and_until_are_of_the_publish(world: World) -> None:
    for _ in range(5):
        world.publish(1)
        world.advance(3600)
    (*_, last) = every = find(world)[::-1]
    now = datetime.fromtimestamp(world.store.ping(), UTC)
    assert find(world, since=now - timedelta(minutes=90)) == [last]
    assert find(world, until=now - timedelta(minutes=90)) == every[:-1][::-1]
    middle = {"since": now - timedelta(minutes=210), "until": now - timedelta(minutes=90)}
    assert find(world, **middle) == [every[3], every[2]]
    assert find(world, since=now) == [] == find(world, until=now - timedelta(days=1))
    world.settle(world.claim(world.worker()), aborted())
    assert find(world, **middle, statuses=("aborted",)) == [every[3], every[2]]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"labels": (("red",),)}, {"keys": ("k",)}, {"queues": ("warehouse",)}, {"payload": (("n", "0"),)},
     {"statuses": ("aborted", "succeeded")}, {"statuses": ("aborted",)}, {"statuses": ("succeeded",)}],
)  # fmt: skip
@pytest.mark.parametrize("look", [3, 20_000])
def test_pages_follow_each_other_whatever_the_bound(world: World, wanted: dict[str, Any], look: int) -> None:
    """I1: going on from cursor to cursor shows everything once, also if a page looks at three rows only."""
    for turn in range(4):
        world.publish(3, labels=["red"], key="k", to=["warehouse", "shop"], payload=lambda _: {"n": 0})
        claims = world.claim(world.worker())
        world.settle(claims[::2])
        world.settle(claims[1::2], aborted() if turn % 2 else failed(delay=600))
    everything, cursor = [], None
    for _ in range(100):
        page = world.store.search.find(Criteria(**wanted), limit=2, cursor=cursor, look=look)
        assert page.complete or look == 3
        everything += ids(page)
        if (cursor := page.next) is None:
            break
    assert cursor is None
    assert everything == find(world, **wanted)
    assert len(everything) == len(set(everything)) >= 6


def test_a_page_says_how_much_it_looked_at(world: World) -> None:
    world.publish(10)
    world.settle(world.claim(world.worker(), 5))
    full = world.store.search.find(Criteria(), limit=4)
    assert (len(full.items), full.looked_at, full.complete) == (4, 4, True)
    nothing = world.store.search.find(Criteria(queues=("other",)))
    assert (nothing.items, nothing.looked_at, nothing.complete, nothing.next) == ((), 10, True, None)
    bounded = world.store.search.find(Criteria(queues=("other",)), look=3)
    assert (bounded.items, bounded.complete, bounded.next is None) == ((), False, False)
    assert 3 <= bounded.looked_at <= 6


def test_encrypted_payloads_are_passed_over_and_counted(world: World) -> None:
    world.publish(3)
    world.sql(
        "update todoku_message set payload = null, content_type = 'application/vnd.todoku.sealed;of=application/json'"
        " where seq = (select max(seq) from todoku_message)"
    )
    found = world.store.search.find(Criteria(payload=(("n", "0"),)))
    assert (len(found.items), found.sealed, found.looked_at) == (1, 1, 3)


def test_a_cursor_that_is_none_is_refused(world: World) -> None:
    for cursor in ("x", "1", "1.2.3", "1.-2", "9" * 30 + ".1"):
        with pytest.raises(InvalidMessage, match="cursor"):
            world.store.search.find(Criteria(), cursor=cursor)


# ------------------------------------------------------------------------------------------- labels


def labels(world: World) -> list[tuple[str, int]]:
    return sorted(world.sql("select label, message_seq from todoku_label"))


def test_labels_are_stored_with_the_message_and_removed_with_it(world: World) -> None:
    world.publish(1)
    assert labels(world) == []
    world.publish(1, labels=["red", "red", "x" * 513, "größe:7"])
    assert [label for label, _ in labels(world)] == ["größe:7", "red"]
    world.settle(world.claim(world.worker()))
    world.advance(10 * 86_400)
    assert world.store.retention.prune(history_ttl=86_400).messages == 2
    assert labels(world) == []


def test_labels_of_a_purged_message_go_with_it(world: World) -> None:
    world.publish(1, labels=["red"], to=["warehouse", "shop"])
    world.settle(world.claim(world.worker()), aborted())
    first, second = world.deliveries()
    world.store.acts.purge(Filter(ids=(first.id,)), SOMEBODY)
    assert len(labels(world)) == 1
    world.store.acts.purge(Filter(ids=(second.id,)), SOMEBODY)
    kept = world.sql("select count(*) from todoku_message")[0][0]
    assert len(labels(world)) == kept


def test_a_duplicate_publish_adds_no_labels(world: World) -> None:
    world.publish(1, labels=["red"], idempotency_key="once")
    world.publish(1, labels=["red"], idempotency_key="once")
    assert len(labels(world)) == 1


def test_words_and_names_that_are_known(world: World) -> None:
    world.publish(
        1, topic="order.paid", key="k1", labels=["red", "payload.order_id:42", "payload.order_id:43", "size:7"]
    )
    known = world.store.search.known_words(["k1", "red", "other"])
    assert {word: (found.is_key, found.is_label) for word, found in known.items()} == {
        "k1": (True, False), "red": (False, True), "other": (False, False),
    }  # fmt: skip
    assert world.store.search.declared_fields(["order_id", "order", "id"]) == {"order_id"}
    assert world.store.search.label_names("") == ("payload.order_id:", "red", "size:")
    assert world.store.search.label_names("p") == ("payload.order_id:",)
    assert world.store.search.label_names("x") == ()
    assert world.store.search.label_names("", limit=1) == ("payload.order_id:",)
    assert world.store.search.recent_names() == {
        "topic": ("order.paid",), "queue": ("warehouse",), "destination": ("warehouse",), "reason": (),
    }  # fmt: skip


# --------------------------------------------------------------------- why each of a page's rows waits


def test_many_situations_are_those_of_each_one(world: World) -> None:
    """The page's line is the first cause of `explain`, for every kind of delivery."""
    limit = Limit(concurrency=1)
    worker = world.worker(lease=3600)
    world.store.destinations.announce(["warehouse", "shop", "bank"])
    world.publish(3, key="lane", ordered=True)
    world.settle(world.claim_lanes(worker, limit=1), aborted())
    world.publish(3, key="gate", per_key=limit, to=["shop"])
    held = world.claim_gates(worker, limit)
    world.publish(2, to=["bank"])
    world.settle(world.claim(worker, 1), failed(delay=300))
    world.store.queues.pause("bank", SOMEBODY, paused=True)
    world.publish(1, to=["unknown"])
    found = world.store.search.find(Criteria()).items
    situations = world.store.search.situations(found)
    assert held
    assert set(situations) == {each.id for each in found}
    causes = set()
    for each in found:
        alone = world.store.situation(each.id)
        assert alone is not None
        here, there = explain(situations[each.id]), explain(alone)
        assert [one.cause for one in here] == [one.cause for one in there]
        causes.add(here[0].cause)
    assert causes >= {"aborted", "lane_parked", "sending", "key_limit_reached", "later", "paused", "unregistered"}


def test_what_has_ended_has_no_situation(world: World) -> None:
    world.publish(2)
    before = world.store.search.find(Criteria()).items
    world.settle(world.claim(world.worker(), 1))
    (left,) = world.store.search.situations(before)
    assert [each.id for each in world.deliveries()] == [left]
    assert world.store.search.situations(tuple(world.history())) == {}
    assert world.store.search.situations(()) == {}
