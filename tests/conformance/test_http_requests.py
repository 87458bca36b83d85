"""Requests one by one: found wherever they are, cancelled by id or by what they have in common; deny by default."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World
from todoku.core.errors import InvalidMessage, NoSuchMessage
from todoku.core.http_request import FlowControl
from todoku.engine.http import requests
from todoku.engine.http.request_draft import Posting
from todoku.store.deliveries import Filter

MASTERS = f"one:{base64.b64encode(b'n' * 32).decode()}"


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


def test_a_request_is_found_while_it_waits_runs_is_dead_and_just_after_it_was_delivered(
    requesting: Requesting,
) -> None:
    id, doomed = requesting.post(body=b"hello"), requesting.post()
    assert _status(requesting, id) == "pending"
    claims = requesting.claim()
    assert _status(requesting, id) == "sending"
    requesting.world.settle([claim for claim in claims if claim.message_id == str(id)])
    requesting.world.settle([claim for claim in claims if claim.message_id == str(doomed)], answered(500, dead=True))
    found = requests.get(requesting.outbox, id)
    assert found is not None
    assert (found.delivery.status, found.body, found.delivery.attempts) == ("succeeded", b"hello", 1)
    assert _status(requesting, doomed) == "aborted"
    assert requests.get(requesting.outbox, uuid4()) is None


def _status(requesting: Requesting, id: object) -> str | None:
    found = requests.get(requesting.outbox, id)  # type: ignore[arg-type]
    return None if found is None else found.delivery.status


def test_a_job_is_no_request(requesting: Requesting, world: World) -> None:
    (job,) = world.publish(1, to=["warehouse"])
    assert requests.get(requesting.outbox, job.id) is None
    with pytest.raises(NoSuchMessage):
        requests.cancel(requesting.outbox, job.id, SOMEBODY)


def test_it_is_told_when_a_request_is_to_be_sent(requesting: Requesting) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    found = requests.get(requesting.outbox, requesting.post(posting=Posting(at=at)))
    assert found is not None
    assert found.delivery.next_run_at == at


def test_an_encrypted_body_is_opened_for_who_has_the_master_key_and_nobody_else(world: World) -> None:
    sealed = Requesting(world, master_keys=MASTERS, encrypt="all")
    id = sealed.post(body=b"hello")
    assert b"hello" not in b"".join(bytes(raw) for (raw,) in world.sql("select payload_bytes from todoku_message"))
    found = requests.get(sealed.outbox, id)
    assert found is not None
    assert found.body == b"hello"
    stranger = requests.get(Requesting(world).outbox, id)
    assert stranger is not None
    assert stranger.body is None


def test_cancelling_what_waits_ends_it_what_runs_is_asked_and_what_ended_stays(requesting: Requesting) -> None:
    waiting, running, done = requesting.post(posting=Posting(delay=60)), requesting.post(), requesting.post()
    claims = requesting.claim()
    requesting.world.settle([claim for claim in claims if claim.message_id == str(done)])
    assert [requests.cancel(requesting.outbox, id, SOMEBODY) for id in (waiting, running, done)] == [1, 1, 0]
    assert _status(requesting, waiting) == "aborted"
    asked = requests.get(requesting.outbox, running)
    assert asked is not None
    assert (asked.delivery.status, asked.delivery.cancel_requested) == ("sending", True)
    assert _status(requesting, done) == "succeeded"
    assert requests.cancel(requesting.outbox, waiting, SOMEBODY) == 0
    with pytest.raises(NoSuchMessage):
        requests.cancel(requesting.outbox, uuid4(), SOMEBODY)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(urls=("https://a.example/x",)), {"a"}),
        (Filter(hosts=("b.example:8443",)), {"b"}),
        (Filter(paths=("/x", "/y")), {"a", "b"}),
        (Filter(labels=("red",)), {"a", "c"}),
        (Filter(request_queues=("orders",)), {"b"}),
        (Filter(flow_keys=("tenant",)), {"c"}),
        (Filter(schedules=("nightly",)), {"c"}),
        (Filter(caller_ips=("10.0.0.7",)), {"a"}),
        (Filter(published_since=datetime(2100, 1, 1, tzinfo=UTC)), set()),
        (Filter(published_until=datetime(2020, 1, 1, tzinfo=UTC)), set()),
        (Filter(url_groups=("nobody",)), set()),
        (Filter(), {"a", "b", "c"}),
    ],
)
def test_many_are_cancelled_by_what_they_have_in_common_and_no_job_is(
    requesting: Requesting, world: World, wanted: Filter, expected: set[str]
) -> None:
    world.publish(2, to=["warehouse"])
    ids = {
        "a": requesting.post("https://a.example/x", labels=("red",), caller_ip="10.0.0.7"),
        "b": requesting.post("https://b.example:8443/y", queue="orders"),
        "c": requesting.post(
            "https://c.example/z", labels=("red",), flow=FlowControl(key="tenant"), schedule="nightly"
        ),
    }
    assert requests.cancel_many(requesting.outbox, wanted, SOMEBODY).number == len(expected)
    assert {name for name, id in ids.items() if _status(requesting, id) == "aborted"} == expected
    assert len(world.deliveries(destination="warehouse", status="pending")) == 2


def test_at_most_so_many_are_cancelled_the_oldest_first(requesting: Requesting) -> None:
    ids = [requesting.post() for _ in range(6)]
    done = requests.cancel_many(requesting.outbox, Filter(), SOMEBODY, limit=4)
    assert done.number == 4
    assert [_status(requesting, id) for id in ids] == ["aborted"] * 4 + ["pending"] * 2
    named = Filter(message_ids=(ids[0], ids[5], uuid4()))
    assert requests.cancel_many(requesting.outbox, named, SOMEBODY) == requests.Cancelled(1, None)
    assert requests.cancel_many(requesting.outbox, Filter(), SOMEBODY, cursor=done.cursor, limit=4).number == 1


def test_SEC_4_a_page_of_cancelling_says_whether_there_are_more(requesting: Requesting) -> None:
    ids = [requesting.post(labels=("red",) if n % 2 else ()) for n in range(6)]
    red, cursors = Filter(labels=("red",)), list[str | None]()
    while not cursors or cursors[-1] is not None:
        cursor = cursors[-1] if cursors else None
        done = requests.cancel_many(requesting.outbox, red, SOMEBODY, cursor=cursor, limit=1)
        assert done.number == 1
        cursors.append(done.cursor)
    assert len(cursors) == 3
    assert [_status(requesting, id) for id in ids] == ["pending", "aborted"] * 3
    with pytest.raises(InvalidMessage, match="cursor"):
        requests.cancel_many(requesting.outbox, red, SOMEBODY, cursor="1.2", limit=1)


def test_what_was_cancelled_goes_when_its_retention_has_passed_and_dead_letters_stay(
    requesting: Requesting, world: World
) -> None:
    """I1: only what a person let go; and with its message, so that nothing is left without the other."""
    requesting.post()
    requesting.run(answered(500, dead=True))
    requests.cancel(requesting.outbox, requesting.post(), SOMEBODY)
    (job,) = world.publish(1, to=["warehouse"])
    world.store.acts.cancel(Filter(message_id=job.id), SOMEBODY)
    assert world.store.retention.prune(history_ttl=3600).cancelled == 0
    world.advance(3700)
    pruned = world.store.retention.prune(history_ttl=3600)
    assert (pruned.cancelled, pruned.messages) == (1, 1)
    assert len(world.deliveries(status="aborted")) == 2
    assert world.store.broken(history_ttl=3600, ledger_ttl=3600) == {}


def test_what_many_cancel_is_audited_one_by_one(requesting: Requesting, world: World) -> None:
    id = requesting.post()
    requests.cancel_many(requesting.outbox, Filter(), SOMEBODY)
    story = world.store.messages.story(id)
    assert story is not None
    assert [(row.by, row.action, row.why) for row in story.audit] == [("somebody", "cancel", "a test")]
