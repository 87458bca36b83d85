"""Dead letters of requests: found by what they have in common, sent again, removed (S4-28, S4-29, S4-30)."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl
from todoku.engine.http import dead_letters
from todoku.engine.http.dead_letters import Selection
from todoku.store import deliveries
from todoku.store.columns import moment
from todoku.store.deliveries import Filter


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


def kill(requesting: Requesting, status: int = 500) -> None:
    """Whatever is due dies, answered so."""
    requesting.run(answered(status, dead=True))


def test_a_dead_letter_has_its_request_its_body_and_what_was_answered_last(requesting: Requesting) -> None:
    id = requesting.post(body=b'{"n":1}', headers={"X-A": "b"}, labels=("red",))
    kill(requesting, 503)
    (letter,) = dead_letters.find(requesting.outbox).items
    assert letter.request.message_id == id
    assert letter.request.body == b'{"n":1}'
    assert letter.request.request.headers == {"X-A": "b"}
    assert letter.response is not None
    assert (letter.response.status, letter.response.body) == (503, b"no")
    assert dead_letters.get(requesting.outbox, letter.id) == letter


def test_what_was_cancelled_or_waits_or_belongs_to_a_job_is_no_dead_letter(
    requesting: Requesting, world: World
) -> None:
    requesting.post()
    world.publish(1, to=["warehouse"])
    requesting.run(answered(500, dead=True))
    world.publish(1, to=["warehouse"])
    cancelled = requesting.post()
    requesting.post()
    world.store.acts.cancel(Filter(message_id=cancelled), SOMEBODY)
    assert len(dead_letters.find(requesting.outbox).items) == 1


FILTERS = [
    (Selection(which=Filter(urls=("https://a.example/x",))), {"a"}),
    (Selection(which=Filter(hosts=("b.example",))), {"b"}),
    (Selection(which=Filter(hosts=("B.Example", "a.example"))), {"a", "b"}),
    (Selection(which=Filter(paths=("/x",))), {"a"}),
    (Selection(which=Filter(labels=("red",))), {"a", "c"}),
    (Selection(which=Filter(labels=("red", "blue"))), {"a", "b", "c"}),
    (Selection(which=Filter(labels=("red",), hosts=("c.example",))), {"c"}),
    (Selection(which=Filter(request_queues=("orders",))), {"b"}),
    (Selection(which=Filter(flow_keys=("tenant",))), {"c"}),
    (Selection(which=Filter(schedules=("nightly",))), {"c"}),
    (Selection(which=Filter(caller_ips=("10.0.0.7",))), {"a"}),
    (Selection(which=Filter(response_statuses=(404,))), {"b"}),
    (Selection(which=Filter(response_statuses=(404, 500))), {"a", "b"}),
    (Selection(which=Filter(response_statuses=(0,))), {"c"}),
    (Selection(which=Filter(reason="HTTP_404")), {"b"}),
    (Selection(which=Filter(url_groups=("nobody",))), set()),
    (Selection(), {"a", "b", "c"}),
]


def test_several_values_mean_any_of_them_and_several_kinds_all_of_them(requesting: Requesting) -> None:
    requesting.post("https://a.example/x", labels=("red",), caller_ip="10.0.0.7")
    kill(requesting, 500)
    requesting.post("https://b.example/y", labels=("blue",), queue="orders")
    kill(requesting, 404)
    requesting.post("https://c.example/z", labels=("red", "big"), flow=FlowControl(key="tenant"), schedule="nightly")
    requesting.run(aborted("CONNECT_TIMEOUT"))
    for wanted, expected in FILTERS:
        found = {item.request.request.url[8] for item in dead_letters.find(requesting.outbox, wanted).items}
        assert found == expected, wanted


def test_dates_are_of_the_moment_it_died(requesting: Requesting, world: World) -> None:
    requesting.post("https://a.example/")
    kill(requesting)
    world.advance(3600)
    between = moment(world.store.ping()) - timedelta(minutes=30)
    requesting.post("https://b.example/")
    kill(requesting)
    urls = [
        [item.request.request.url for item in dead_letters.find(requesting.outbox, wanted).items]
        for wanted in (
            Selection(which=Filter(since=between)),
            Selection(which=Filter(until=between + timedelta(microseconds=1))),
        )
    ]
    assert urls == [["https://b.example/"], ["https://a.example/"]]


def test_pages_go_on_where_the_last_one_ended_and_nothing_is_told_twice(requesting: Requesting) -> None:
    ids = [requesting.post(labels=("odd",) if n % 2 else ()) for n in range(25)]
    kill(requesting)  # one transaction: all of them died at the same moment
    seen, cursor = [], None
    while True:
        page = dead_letters.find(requesting.outbox, Selection(which=Filter(labels=("odd",))), cursor=cursor, limit=5)
        seen += [item.request.message_id for item in page.items]
        assert len(page.items) <= 5
        if (cursor := page.cursor) is None:
            break
    assert len(seen) == len(set(seen)) == 12
    assert set(seen) == {id for n, id in enumerate(ids) if n % 2}


def test_a_page_looks_at_a_bounded_number_and_says_where_to_go_on(
    requesting: Requesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that one of a million passes must not read the million for one page."""
    monkeypatch.setattr(deliveries, "LOOKED_AT", 10)
    rare = requesting.post(labels=("rare",))
    for _ in range(24):
        requesting.post()
    kill(requesting)
    pages, cursor = [], None
    while True:
        page = dead_letters.find(requesting.outbox, Selection(which=Filter(labels=("rare",))), cursor=cursor)
        pages.append([item.request.message_id for item in page.items])
        if (cursor := page.cursor) is None:
            break
    assert pages == [[], [], [rare]]


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.x", "-1.2", "1.2.3", "9" * 30 + ".1"])
def test_a_cursor_that_is_none_is_refused(requesting: Requesting, cursor: str) -> None:
    with pytest.raises(InvalidMessage, match="cursor"):
        dead_letters.find(requesting.outbox, cursor=cursor)


def test_a_retry_is_an_audited_replay_and_its_old_name_is_gone(requesting: Requesting, world: World) -> None:
    """I9: whoever sends it again is on record; dead again, it is another dead letter."""
    id = requesting.post()
    kill(requesting)
    (letter,) = dead_letters.find(requesting.outbox).items
    done = dead_letters.replay(requesting.outbox, Selection(dead_ids=(letter.id,)), SOMEBODY)
    assert done.message_ids == (id,)
    assert dead_letters.get(requesting.outbox, letter.id) is None
    story = world.store.messages.story(id)
    assert story is not None
    assert [(row.by, row.action) for row in story.audit] == [("somebody", "replay")]
    kill(requesting)
    (again,) = dead_letters.find(requesting.outbox).items
    assert again.id != letter.id
    assert dead_letters.replay(requesting.outbox, Selection(dead_ids=(letter.id,)), SOMEBODY).message_ids == ()


def test_what_is_meant_is_sent_again_page_by_page(requesting: Requesting) -> None:
    for n in range(7):
        requesting.post(labels=("red",) if n < 5 else ())
    kill(requesting)
    first = dead_letters.replay(requesting.outbox, Selection(which=Filter(labels=("red",))), SOMEBODY, limit=3)
    assert len(first.message_ids) == 3
    second = dead_letters.replay(
        requesting.outbox, Selection(which=Filter(labels=("red",))), SOMEBODY, limit=3, cursor=first.cursor
    )
    assert len(second.message_ids) == 2
    assert len(dead_letters.find(requesting.outbox).items) == 2


def test_a_removed_dead_letter_is_gone_and_the_audit_says_who_did_it(requesting: Requesting, world: World) -> None:
    id = requesting.post()
    kill(requesting)
    (letter,) = dead_letters.find(requesting.outbox).items
    assert dead_letters.purge(
        requesting.outbox, Selection(dead_ids=(letter.id, "999-0", "x")), SOMEBODY
    ).message_ids == (id,)
    assert dead_letters.get(requesting.outbox, letter.id) is None
    assert dead_letters.find(requesting.outbox).items == ()
    assert ("purge", f"message:{id}") in world.sql("select action, target from todoku_audit")


def test_what_a_publisher_hides_is_shown_as_its_digest(requesting: Requesting) -> None:
    requesting.post(
        body=b"secret", headers={"Authorization": "Bearer x", "X-A": "b"}, redact=("body", "header[Authorization]")
    )
    kill(requesting)
    (letter,) = dead_letters.find(requesting.outbox).items
    digest = hashlib.sha256(b"secret").hexdigest()
    assert letter.request.body == f"REDACTED:{digest}".encode()
    token = hashlib.sha256(b"Bearer x").hexdigest()
    assert letter.request.request.headers == {"Authorization": f"REDACTED:{token}", "X-A": "b"}
