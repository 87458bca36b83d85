"""One filter for listings and acts, answered by SQL: also by the fields of HTTP requests (S4-28)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.requesting import Requesting
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.http_request import FlowControl
from todoku.core.outcome import Traceback
from todoku.store.deliveries import Filter

URL = "https://Shop.example:8443/a/b?c=d"


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


@pytest.mark.parametrize(
    ("which", "matches"),
    [
        (Filter(), True),
        (Filter(hosts=("shop.example",)), True),
        (Filter(hosts=("SHOP.example:8443",)), True),
        (Filter(hosts=("shop.example:443",)), False),
        (Filter(hosts=("shop",)), False),
        (Filter(paths=("/a/b",)), True),
        (Filter(paths=("/a",)), False),
        (Filter(urls=(URL,)), True),
        (Filter(urls=("https://Shop.example:8443/a/b",)), False),
        (Filter(labels=("blue", "big")), True),
        (Filter(labels=("blue",)), False),
        (Filter(labels=("red",), paths=("/x",)), False),
        (Filter(request_queues=("orders",)), False),
        (Filter(flow_keys=("tenant",)), True),
        (Filter(flow_keys=("other",)), False),
        (Filter(response_statuses=(0,)), True),
        (Filter(response_statuses=(500,)), False),
        (Filter(topic="http.request", hosts=("shop.example",)), True),
        (Filter(topic="order.created", hosts=("shop.example",)), False),
    ],
)
def test_a_request_matches_if_it_has_any_value_of_each_field(
    requesting: Requesting, world: World, which: Filter, matches: bool
) -> None:
    id = requesting.post(URL, labels=("red", "big"), flow=FlowControl(key="tenant"))
    found = [delivery.message_id for delivery in world.store.deliveries.find(which).items]
    assert found == ([id] if matches else [])
    acted = world.store.acts.cancel(which, SOMEBODY, dry_run=True)
    assert len(acted.changed) == int(matches)


@pytest.mark.parametrize(
    ("place", "host", "path"),
    [
        ("https://shop.example", "shop.example", "/"),
        ("https://shop.example?q=/x", "shop.example", "/"),
        ("http://shop.example/x#y", "shop.example", "/x"),
        ("https://[2001:db8::1]:8443/x?y=/z", "[2001:db8::1]:8443", "/x"),
    ],
)
def test_host_and_path_are_those_of_the_url(
    requesting: Requesting, world: World, place: str, host: str, path: str
) -> None:
    id = requesting.post(place)
    for which in (Filter(hosts=(host,)), Filter(paths=(path,)), Filter(hosts=(host,), paths=(path,))):
        assert [delivery.message_id for delivery in world.store.deliveries.find(which).items] == [id], which


def test_other_messages_match_no_field_of_requests(world: World) -> None:
    world.publish(3)
    assert world.store.deliveries.find(Filter(paths=("/",))).items == ()
    assert world.store.deliveries.find(Filter(hosts=("shop.example",))).items == ()


def test_delivered_requests_are_found_by_the_same_fields(requesting: Requesting, world: World) -> None:
    id = requesting.post(URL, labels=("red",))
    requesting.post("https://other.example/")
    requesting.run()
    found = world.store.deliveries.find(Filter(status="succeeded", labels=("red",))).items
    assert [delivery.message_id for delivery in found] == [id]


def test_an_empty_fingerprint_selects_those_without_a_traceback(world: World) -> None:
    """Each group of dead letters can be selected, also the one of failures that left no traceback."""
    world.publish(2)
    first, second = world.claim(world.worker())
    trace = Traceback("Traceback", "Traceback", "f00d")
    world.settle([first], msgspec.structs.replace(aborted("REFUSED"), traceback=trace))
    world.settle([second], aborted("REFUSED"))
    for fingerprint, id in (("f00d", first.id), ("", second.id)):
        which = Filter(fingerprint=fingerprint)
        assert [row.id for row in world.store.deliveries.find(which).items] == [id]
        assert world.store.acts.replay(which, SOMEBODY, dry_run=True).changed == (id,)


def test_dead_letters_are_counted_by_cause_as_by_any_other_filter(world: World) -> None:
    """The index by cause gives the same numbers as the rows."""
    world.publish(4)
    claims = world.claim(world.worker())
    for claim, reason in zip(claims, ("REFUSED", "REFUSED", "TIMEOUT", None), strict=True):
        if reason is not None:
            world.settle([claim], aborted(reason))
        world.advance(10)
    (row,) = world.store.deliveries.find(Filter(reason="TIMEOUT")).items
    for which, number in (
        (Filter(status="aborted"), 3),
        (Filter(status="aborted", reason="REFUSED"), 2),
        (Filter(status="aborted", reason="REFUSED", destination="nowhere"), 0),
        (Filter(status="aborted", fingerprint=""), 3),
        (Filter(status="aborted", fingerprint="f00d"), 0),
        (Filter(status="aborted", since=row.updated_at), 1),
        (Filter(status="aborted", until=row.updated_at), 2),
    ):
        assert world.store.deliveries.count(which, most=100) == number, which
        beside = msgspec.structs.replace(which, topic="order.created")
        assert world.store.deliveries.count(beside, most=100) == number, which
    assert world.store.deliveries.count(Filter(status="aborted"), most=2) == 2
