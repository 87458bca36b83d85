"""Queues, flow keys and URL groups: made by use, changed at run time, counted, forgotten when nobody uses them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl
from todoku.engine.http import flow_control, request_queues, url_groups
from todoku.engine.http.url_groups import EndpointName
from todoku.store.limits import Counted

DAY = 86_400.0


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


# ------------------------------------------------------------------------------------------------ queues


def test_a_queue_is_made_changed_paused_listed_and_removed(world: World) -> None:
    store = world.store
    request_queues.upsert(store, "orders", SOMEBODY, parallelism=5, paused=True)
    made = request_queues.get(store, "orders")
    assert made is not None
    assert (made.parallelism, made.paused, made.lag) == (5, True, 0)
    world.advance(10)
    request_queues.upsert(store, "orders", SOMEBODY, parallelism=2)
    request_queues.pause(store, "orders", SOMEBODY, paused=False)
    changed = request_queues.get(store, "orders")
    assert changed is not None
    assert (changed.parallelism, changed.paused, changed.created_at) == (2, False, made.created_at)
    assert changed.updated_at > made.updated_at
    request_queues.upsert(store, "another", SOMEBODY)
    assert [queue.name for queue in request_queues.list_queues(store)] == ["another", "orders"]
    assert request_queues.remove(store, "orders", SOMEBODY)
    assert not request_queues.remove(store, "orders", SOMEBODY)
    assert request_queues.get(store, "orders") is None


def test_a_queue_of_jobs_or_one_that_was_only_paused_by_hand_is_none_of_these(world: World) -> None:
    world.store.queues.pause("mail", SOMEBODY, paused=True)
    world.store.queues.pause("http:orders", SOMEBODY, paused=True)
    assert request_queues.list_queues(world.store) == ()
    assert request_queues.ensure(world.store, "orders") == 1
    found = request_queues.get(world.store, "orders")
    assert found is not None
    assert found.paused


def test_the_lag_counts_what_waits_in_order_or_not_and_not_what_runs_or_ended(requesting: Requesting) -> None:
    store = requesting.world.store
    for _ in range(3):
        requesting.post(queue="fifo")
    request_queues.upsert(store, "wide", SOMEBODY, parallelism=10)
    for _ in range(4):
        requesting.post(queue="wide")
    assert {queue.name: queue.lag for queue in request_queues.list_queues(store)} == {"fifo": 3, "wide": 4}
    requesting.world.settle(requesting.claim()[:1])
    assert {queue.name: queue.lag for queue in request_queues.list_queues(store)} == {"fifo": 0, "wide": 0}


def test_a_queue_that_is_narrowed_to_one_holds_back_what_was_outside_its_lane(requesting: Requesting) -> None:
    """Never two at once, also of messages that came while it was wide."""
    store = requesting.world.store
    request_queues.upsert(store, "orders", SOMEBODY, parallelism=3)
    requesting.post(queue="orders")
    request_queues.upsert(store, "orders", SOMEBODY, parallelism=1)
    requesting.posts.forget("orders")
    requesting.post(queue="orders")
    worker, counted = requesting.world.worker(), Counted(queues=frozenset({"http:orders"}))
    assert len(requesting.world.claim(worker, counted=counted)) == 1
    assert requesting.world.claim_lanes(worker, counted=counted) == []


def test_many_who_use_a_new_queue_at_the_same_time_make_one(world: World) -> None:
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda store: request_queues.ensure(store, "orders"), stores)) == [1, 1, 1, 1]
    assert len(request_queues.list_queues(world.store)) == 1


def test_a_dead_letter_does_not_stop_its_queue(requesting: Requesting) -> None:
    """The next message waits for the retries of the one before, and then goes on."""
    first, second = requesting.post(queue="orders"), requesting.post("https://other.example/", queue="orders")
    head, follower = requesting.claim()
    assert [head.message_id, follower.message_id] == [str(first), str(second)]
    requesting.world.settle([head], answered(500, dead=True))
    requesting.world.store.claims.release([follower])
    assert [claim.message_id for claim in requesting.claim()] == [str(second)]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 201, "a\n"])
def test_a_name_that_fits_no_url_is_refused(world: World, name: str) -> None:
    for act in (
        request_queues.upsert,
        lambda store, name, by: flow_control.pause(store, name, by, paused=True),
        url_groups.delete,
    ):
        with pytest.raises(InvalidMessage):
            act(world.store, name, SOMEBODY)  # type: ignore[operator]


# --------------------------------------------------------------------------------------------- flow keys


def test_a_flow_key_tells_what_it_allows_what_runs_and_what_waits(requesting: Requesting) -> None:
    store = requesting.world.store
    flow = FlowControl(key="tenant", parallelism=2, rate=10, period=60.0)
    for _ in range(3):
        requesting.post(flow=flow)
    worker, counted = requesting.world.worker(), Counted(queues=frozenset({"flow:tenant"}))
    assert len(requesting.world.claim(worker, counted=counted)) == 1  # ten a minute are not two at once
    found = flow_control.get(store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.parallelism_count, found.waiting) == (2, 1, 2)
    assert (found.rate_max, found.rate_count, found.period) == (10, 1, 60.0)
    assert requesting.world.claim(worker, counted=counted) == []
    assert flow_control.reset_rate(store, "tenant", SOMEBODY)
    assert len(requesting.world.claim(worker, counted=counted)) == 1
    assert not flow_control.reset_rate(store, "nobody", SOMEBODY)


def test_keys_are_listed_by_a_part_of_their_name(requesting: Requesting) -> None:
    for key in ("tenant-1", "tenant-2", "other"):
        requesting.post(flow=FlowControl(key=key, parallelism=1))
    names = [flow.key for flow in flow_control.list_keys(requesting.world.store)]
    assert names == ["other", "tenant-1", "tenant-2"]
    assert [flow.key for flow in flow_control.list_keys(requesting.world.store, search="nant")] == [
        "tenant-1",
        "tenant-2",
    ]
    assert flow_control.list_keys(requesting.world.store, search="flow:") == ()


def test_the_last_publisher_says_what_a_key_allows_and_a_pin_goes_before_it(requesting: Requesting) -> None:
    store = requesting.world.store
    requesting.post(flow=FlowControl(key="tenant", rate=5))
    requesting.post(flow=FlowControl(key="tenant", parallelism=7, rate=6, period=2.0))
    found = flow_control.get(store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.rate_max, found.period) == (7, 6, 2.0)
    flow_control.pin(store, "tenant", SOMEBODY, rate=1, period=3600.0)
    requesting.post(flow=FlowControl(key="tenant", parallelism=8, rate=9))
    found = flow_control.get(store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.rate_max, found.period, found.pinned_rate) == (8, 1, 3600.0, True)
    flow_control.unpin(store, "tenant", SOMEBODY, parallelism=True, rate=False)
    assert (flow_control.get(store, "tenant") or found).pinned_rate
    flow_control.unpin(store, "tenant", SOMEBODY)
    found = flow_control.get(store, "tenant")
    assert found is not None
    assert (found.rate_max, found.period, found.pinned_rate) == (9, 1.0, False)


def test_a_limit_that_a_person_set_by_hand_stays_until_publishers_say_something_new(requesting: Requesting) -> None:
    store = requesting.world.store
    requesting.post(flow=FlowControl(key="tenant", parallelism=5))
    store.limits.set("flow:tenant", SOMEBODY, of="queue", concurrency=1, rate=None)
    flow_control.ensure(store, FlowControl(key="tenant", parallelism=5))
    assert [limit.concurrency for limit in store.limits.read().queues] == [1]
    flow_control.ensure(store, FlowControl(key="tenant", parallelism=6))
    assert [limit.concurrency for limit in store.limits.read().queues] == [6]


def test_a_paused_key_sends_nothing_and_stays_paused_whatever_is_published(requesting: Requesting) -> None:
    store = requesting.world.store
    flow_control.pause(store, "tenant", SOMEBODY, paused=True)
    requesting.post(flow=FlowControl(key="tenant", parallelism=5))
    found = flow_control.get(store, "tenant")
    assert found is not None
    assert (found.paused, found.parallelism_max) == (True, 5)
    assert requesting.claim() == []
    flow_control.pause(store, "tenant", SOMEBODY, paused=False)
    assert len(requesting.claim()) == 1


def test_acts_of_people_are_audited_and_those_of_publishers_are_not(requesting: Requesting) -> None:
    requesting.post(flow=FlowControl(key="tenant", parallelism=5))
    requesting.post(queue="orders")
    assert requesting.world.sql("select action from todoku_audit") == []
    flow_control.pin(requesting.world.store, "tenant", SOMEBODY, parallelism=1)
    request_queues.upsert(requesting.world.store, "orders", SOMEBODY, parallelism=4)
    assert requesting.world.sql("select by, action, target from todoku_audit order by id") == [
        ("somebody", "pin", "queue:flow:tenant"),
        ("somebody", "parallelism 4", "queue:http:orders"),
    ]


def test_what_came_into_being_by_use_is_forgotten_when_nobody_uses_it(requesting: Requesting, world: World) -> None:
    for key in ("idle", "pinned", "paused", "waiting"):
        requesting.post(flow=FlowControl(key=key, parallelism=5))
    requesting.post(queue="fifo")
    requesting.post(queue="gone")
    requesting.run()
    flow_control.pin(world.store, "pinned", SOMEBODY, parallelism=1)
    flow_control.pause(world.store, "paused", SOMEBODY, paused=True)
    request_queues.upsert(world.store, "wanted", SOMEBODY)
    requesting.post(flow=FlowControl(key="waiting", parallelism=5))
    requesting.post(queue="fifo")
    world.advance(8 * DAY)
    assert world.store.retention.prune(history_ttl=30 * DAY).queues == 2
    assert [flow.key for flow in flow_control.list_keys(world.store)] == ["paused", "pinned", "waiting"]
    assert [queue.name for queue in request_queues.list_queues(world.store)] == ["fifo", "wanted"]


def test_what_is_used_now_and_then_is_not_forgotten(world: World) -> None:
    flow = FlowControl(key="tenant", parallelism=5)
    for _ in range(3):
        flow_control.ensure(world.store, flow)
        request_queues.ensure(world.store, "orders")
        world.advance(5 * DAY)
    assert world.store.retention.prune(history_ttl=30 * DAY).queues == 0


# -------------------------------------------------------------------------------------------- URL groups


def test_a_group_is_its_endpoints_and_goes_with_the_last_of_them(world: World) -> None:
    store = world.store
    url_groups.put(store, "shops", [EndpointName("https://a.example/", "a")], SOMEBODY)
    url_groups.put(
        store, "shops", [EndpointName("https://a.example/", "first"), EndpointName("https://b.example/")], SOMEBODY
    )
    found = url_groups.get(store, "shops")
    assert found is not None
    assert {(one.url, one.name, one.enabled) for one in found.endpoints} == {
        ("https://a.example/", "first", True),
        ("https://b.example/", None, True),
    }
    assert (
        url_groups.remove(
            store, "shops", [EndpointName(name="first"), EndpointName("https://nobody.example/")], SOMEBODY
        )
        == 1
    )
    assert url_groups.remove(store, "shops", [EndpointName("https://b.example/")], SOMEBODY) == 1
    assert url_groups.get(store, "shops") is None
    assert not url_groups.delete(store, "shops", SOMEBODY)


def test_the_same_url_may_be_in_two_groups_and_is_disabled_in_both(world: World) -> None:
    store, signed = world.store, SOMEBODY
    url_groups.put(store, "one", [EndpointName("https://a.example/")], signed)
    url_groups.put(store, "two", [EndpointName("https://a.example/")], signed)
    assert url_groups.disable(store, "https://a.example/", "HTTP_GONE", signed)
    found = [endpoint for group in url_groups.list_groups(store) for endpoint in group.endpoints]
    assert [(one.enabled, one.reason) for one in found] == [(False, "HTTP_GONE"), (False, "HTTP_GONE")]
    assert not url_groups.disable(store, "https://a.example/", "HTTP_GONE", signed)
    assert url_groups.enable(store, "https://a.example/", signed, group="one")
    found = [endpoint for group in url_groups.list_groups(store) for endpoint in group.endpoints]
    assert [(one.enabled, one.reason) for one in found] == [(True, None), (False, "HTTP_GONE")]
    url_groups.put(store, "two", [EndpointName("https://a.example/")], signed)
    found = [endpoint for group in url_groups.list_groups(store) for endpoint in group.endpoints]
    assert [one.enabled for one in found] == [True, True]
    assert url_groups.delete(store, "one", signed)
    assert [group.name for group in url_groups.list_groups(store)] == ["two"]


def test_a_group_keeps_its_headers_when_endpoints_come_and_go(world: World) -> None:
    url_groups.put(world.store, "shops", [EndpointName("https://a.example/")], SOMEBODY)
    url_groups.set_headers(world.store, "shops", {"X-A": "b"}, SOMEBODY)
    url_groups.put(world.store, "shops", [EndpointName("https://b.example/")], SOMEBODY)
    found = url_groups.get(world.store, "shops")
    assert found is not None
    assert found.headers == {"X-A": "b"}


@pytest.mark.parametrize("endpoints", [[], [EndpointName()], [EndpointName(name="only")]])
def test_endpoints_that_say_nothing_are_refused(world: World, endpoints: list[EndpointName]) -> None:
    with pytest.raises(InvalidMessage, match="endpoint"):
        url_groups.put(world.store, "shops", endpoints, SOMEBODY)
    assert url_groups.list_groups(world.store) == ()
