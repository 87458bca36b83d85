"""Schedules of requests: stored with their whole request, fired to a URL or to each endpoint of a URL group (S4-59)."""

from __future__ import annotations

import msgspec
import pytest

import todoku
from tests.api.test_schedules import firing_of, row, until_next
from tests.support.world import World
from todoku.core.errors import DatabaseUnavailable, InvalidMessage, NotThere
from todoku.core.http_request import HTTP, HttpRequest
from todoku.core.schedule import cron
from todoku.engine.http import request_queues, request_schedules, url_groups
from todoku.engine.http.publish_requests import CheckedRequest
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.url_groups import EndpointName
from todoku.store.audit import Signed
from todoku.store.failpoint import armed, lose

WHO = Signed("ada", "a test")
HOURLY = cron("0 * * * *")
URLS = ["https://one.example/hook", "https://two.example/hook"]


@pytest.fixture
def box(box: todoku.App) -> todoku.App:
    """With a URL group of two endpoints."""
    url_groups.put(box.store, "both", [EndpointName(url) for url in URLS], WHO)
    return box


def put(box: todoku.App, id: str = "s", *, url: str = "", queue: str | None = None, body: bytes = b"tick") -> None:
    """A schedule, to the group unless it has a URL."""
    to = HttpRequest(url=url, group=None if url else "both", schedule=id, queue=queue, headers={"X-Own": "1"})
    request_schedules.put(box.outbox, id, CheckedRequest(request=to, body=body, posting=Posting(delay=5)), HOURLY, WHO)


def published(world: World) -> list[tuple[HttpRequest, bytes, str, str | None]]:
    """(request, body, status, reason) of every message, by URL."""
    rows = world.sql(
        "select m.headers, m.payload_bytes, d.status, d.reason from todoku_message m"
        " join todoku_delivery d on d.message_seq = m.seq"
    )
    found = []
    for headers, body, status, reason in rows:
        told = msgspec.json.decode(headers) if isinstance(headers, str) else headers
        found.append((msgspec.json.decode(told[HTTP], type=HttpRequest), bytes(body), str(status), reason))
    return sorted(found, key=lambda each: each[0].url)


def test_a_slot_is_fired_once_to_each_endpoint(box: todoku.App, world: World) -> None:
    """I2: the slot and all of its messages are one commit; moved back by hand, none is sent again."""
    put(box)
    slot = until_next(box, world, "http:s")
    with armed("fire.before_commit", lose), pytest.raises(DatabaseUnavailable):
        firing_of(box).fire_due()
    assert published(world) == [], "not one of the two without the other"
    firing_of(box).fire_due()
    sent = published(world)
    assert [(request.url, request.group, request.schedule) for request, *_ in sent] == [(u, "both", "s") for u in URLS]
    assert {body for _, body, *_ in sent} == {b"tick"}
    assert all(request.headers == {"X-Own": "1"} for request, *_ in sent)
    shown = request_schedules.get(box.store, "s")
    assert (shown.last_run_at, shown.destination, shown.last_status) == (slot, "both", "pending")
    world.sql("update todoku_schedule set next_run_at = last_run_at")
    firing_of(box).fire_due()
    assert len(published(world)) == 2


def test_the_endpoints_are_those_of_the_moment_it_fires(box: todoku.App, world: World) -> None:
    put(box)
    url_groups.put(box.store, "both", [EndpointName("https://three.example/")], WHO)
    url_groups.set_headers(box.store, "both", {"X-Own": "group", "X-Group": "1"}, WHO)
    assert url_groups.disable(box.store, URLS[0], "HTTP_GONE", WHO)
    until_next(box, world, "http:s")
    firing_of(box).fire_due()
    sent = {request.url: (status, reason) for request, _, status, reason in published(world)}
    assert sent.pop(URLS[0]) == ("aborted", "ENDPOINT_DISABLED")
    assert sent == {URLS[1]: ("pending", None), "https://three.example/": ("pending", None)}
    assert published(world)[1][0].headers == {"X-Own": "1", "X-Group": "1"}


def test_a_group_without_endpoints_is_refused_and_later_an_error(box: todoku.App, world: World) -> None:
    put(box)
    url_groups.delete(box.store, "both", WHO)
    with pytest.raises(InvalidMessage, match="both"):
        put(box, "another")
    until_next(box, world, "http:s")
    firing_of(box).fire_due()
    assert "both" in (request_schedules.get(box.store, "s").error or "")
    url_groups.put(box.store, "both", [EndpointName(URLS[0])], WHO)
    firing_of(box).fire_due()  # another worker, or this one after a minute: the slot stayed due
    assert [request.url for request, *_ in published(world)] == [URLS[0]]


def test_run_now_sends_to_each_endpoint(box: todoku.App, world: World) -> None:
    put(box)
    box.schedules.run_now("http:s", by="ada", why="to see it")
    assert [request.url for request, *_ in published(world)] == URLS


def test_putting_it_again_changes_it_and_keeps_when_it_was_made(box: todoku.App, world: World) -> None:
    put(box)
    made = request_schedules.get(box.store, "s")
    world.advance(60)
    put(box, url="https://other.example/", body=b"")
    changed = request_schedules.get(box.store, "s")
    assert (changed.destination, changed.body, changed.delay) == ("https://other.example/", b"", 5)
    assert changed.created_at == made.created_at
    assert row(box, "http:s").next_run_at == made.next_run_at
    with pytest.raises(NotThere):
        request_schedules.get(box.store, "another")


def test_a_queue_is_made_with_it_and_one_at_a_time_is_in_order(box: todoku.App, world: World) -> None:
    put(box, url="https://one.example/", queue="q")
    assert request_queues.get(box.store, "q") is not None
    until_next(box, world, "http:s")
    firing_of(box).fire_due()
    ((queue, lane),) = world.sql("select queue, lane from todoku_delivery")
    assert queue == "http:q"
    assert lane is not None
