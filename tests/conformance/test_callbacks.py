"""Callbacks: whoever ends a request, in the same transaction somebody is told (I1, I2), and once (I3)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.conformance.test_endings import by_cancel_while_it_waits, by_hand_as_aborted
from tests.support.requesting import URL, Requesting, answered
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.decision import Settlement
from todoku.core.http_request import Callback, HttpRequest, request_of
from todoku.core.message import Claimed
from todoku.core.outcome import Response
from todoku.core.status import Status
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import new_id
from todoku.store.deliveries import Filter
from todoku.store.url_groups import NewEndpoint

DONE = Callback(url="https://told.example/done", headers={"X-Own": "1"}, retries=1)
FAILED = Callback(url="https://told.example/failed", method="PUT", retries=0, delay=30.0)
OK = Settlement(status=Status.SUCCEEDED, response=Response(201, {"X-A": "b"}, b"made"))


@pytest.fixture
def http(world: World) -> Requesting:
    return Requesting(world)


def post(http: Requesting, **request: Any) -> Claimed:
    """A request with both callbacks, claimed."""
    asked = HttpRequest(url=URL, callback=DONE, failure_callback=FAILED, **request)
    draft = request_draft(new_id(), asked, b"\xff raw", Posting(), max_payload_bytes=1000)
    http.outbox.put([draft], None, twin="…")
    (claim,) = http.claim()
    return claim


def told(world: World) -> list[tuple[HttpRequest, dict[str, Any]]]:
    """Every callback that waits: its request and its body."""
    found = []
    for delivery in world.deliveries(topic="http.callback"):
        assert delivery.message_id is not None
        story = world.store.messages.story(delivery.message_id)
        assert story is not None
        request = request_of(story.message.headers)
        assert request is not None
        found.append((request, json.loads(story.message.payload_bytes or b"")))
    return found


def test_a_success_is_told_with_its_answer(world: World, http: Requesting) -> None:
    """§2.4: the fields of a callback's body."""
    headers = {"X-B": "1", "Authorization": "Bearer s"}
    claim = post(http, group="team", endpoint="one", caller_ip="203.0.113.9", schedule="s", headers=headers)
    world.settle([claim], OK)
    ((request, body),) = told(world)
    assert (request.url, request.method, request.retries) == ("https://told.example/done", "POST", 1)
    assert request.headers == {"Content-Type": "application/json", "X-Own": "1"}
    assert request.source == claim.message_id
    created = body.pop("createdAt")
    assert body.pop("notBefore") == created
    assert abs(created / 1000 - claim.created_at) < 0.01
    assert body == {
        "status": 201,
        "header": {"X-A": ["b"]},
        "body": base64.b64encode(b"made").decode(),
        "retried": 0,
        "maxRetries": 3,
        "sourceMessageId": claim.message_id,
        "url": URL,
        "method": "POST",
        "sourceHeader": {"X-B": ["1"]},
        "sourceBody": base64.b64encode(b"\xff raw").decode(),
        "topicName": "team",
        "endpointName": "one",
        "scheduleId": "s",
        "callerIP": "203.0.113.9",
    }
    (delivery,) = world.deliveries(topic="http.callback")
    assert (delivery.destination, delivery.queue, delivery.max_attempts) == ("https://told.example", "http", 2)


def by_its_worker(world: World, claim: Claimed) -> str:
    world.settle([claim], answered(500, b"broken", dead=True))
    return "HTTP_500"


def by_reclaim(world: World, claim: Claimed) -> str:
    world.advance(100_000)
    world.store.leases.reclaim(max_lost=1)
    return "WORKER_LOST"


def by_cancel_while_it_runs(world: World, claim: Claimed) -> str:
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    world.settle([claim], answered(500))
    return "CANCELLED"


def by_nobody_serving_it(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.advance(700)
    world.store.retention.expire(unknown_after=600)
    return "UNKNOWN_DESTINATION"


Way = Callable[[World, Claimed], str]
WAYS: list[Way] = [
    by_its_worker,
    by_reclaim,
    by_cancel_while_it_waits,
    by_cancel_while_it_runs,
    by_nobody_serving_it,
    by_hand_as_aborted,
]


@pytest.mark.parametrize("end", WAYS)
def test_a_failure_is_told_whoever_ends_it(
    world: World, http: Requesting, end: Callable[[World, Claimed], str]
) -> None:
    """Issue 6: with the place of the dead letter, and the last answer there was."""
    claim = post(http)
    reason = end(world, claim)
    (dead,) = world.deliveries(topic="http.request")
    assert (dead.status, dead.reason) == ("aborted", reason)
    ((request, body),) = told(world)
    assert (request.url, request.method) == ("https://told.example/failed", "PUT")
    assert body["dlqId"] == f"{claim.id}-0"
    answers = {"HTTP_500": (500, b"broken")}
    status, said = (500, b"no") if end is by_cancel_while_it_runs else answers.get(reason, (0, b""))
    assert (body["status"], base64.b64decode(body["body"])) == (status, said)
    (delivery,) = world.deliveries(topic="http.callback")
    assert delivery.max_attempts == 1
    assert (delivery.next_run_at - dead.updated_at).total_seconds() == pytest.approx(30, abs=2)


def test_a_person_who_calls_it_a_success_tells_so(world: World, http: Requesting) -> None:
    claim = post(http)
    world.store.claims.release([claim])
    world.store.acts.settle_by_hand(Filter(ids=(claim.id,)), SOMEBODY, succeeded=True)
    ((request, body),) = told(world)
    assert (request.url, body["status"]) == ("https://told.example/done", 0)


def test_a_retry_is_no_end(world: World, http: Requesting) -> None:
    """And what a later attempt ends with tells how often it was tried."""
    claim = post(http)
    world.settle([claim], answered(503))
    assert told(world) == []
    (again,) = http.claim()
    world.settle([again], OK)
    ((_, body),) = told(world)
    assert (body["status"], body["retried"]) == (201, 1)


def test_an_end_that_is_not_ours_tells_nothing(world: World, http: Requesting) -> None:
    """I3: a stale worker changes nothing, and nothing follows from it."""
    claim = post(http)
    world.store.claims.release([claim])
    assert world.settle([claim], OK).lost
    assert told(world) == []


def test_settling_twice_tells_once(world: World, http: Requesting) -> None:
    """H4: a settle repeated after a lost reply."""
    claim = post(http)
    for _ in range(2):
        assert not world.settle([claim], OK).lost
    assert len(told(world)) == 1


def test_nobody_is_told_how_a_callback_ended(world: World, http: Requesting) -> None:
    """qstash-js#192: it has retries of its own, and no callbacks."""
    world.settle([post(http)], OK)
    (claim,) = http.claim()
    assert claim.topic == "http.callback"
    world.settle([claim], answered(500, dead=True))
    assert [delivery.status for delivery in world.deliveries(topic="http.callback")] == ["aborted"]


def test_who_asked_for_one_is_told_of_that_only(world: World, http: Requesting) -> None:
    for ending, given in ((OK, {"failure_callback": FAILED}), (aborted(), {"callback": DONE})):
        http.post(**given)
        http.run(ending)
    assert told(world) == []


def test_a_callback_belongs_to_the_trace_of_its_request(world: World, http: Requesting) -> None:
    trace = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "x-own": "1"}
    http.post(callback=DONE, posting=Posting(trace=trace))
    http.run(OK)
    (delivery,) = world.deliveries(topic="http.callback")
    assert delivery.message_id is not None
    story = world.store.messages.story(delivery.message_id)
    assert story is not None
    headers = json.loads(story.message.headers or "{}")
    assert headers["traceparent"] == trace["traceparent"]
    assert "x-own" not in headers


def test_a_header_that_somebody_else_wrote_fails_nothing(world: World) -> None:
    """I13: a settle does not fail by what is in a message."""
    world.publish(topic="http.request", headers={"todoku-http": '{"callback": nonsense'})
    claims = world.claim(world.worker())
    assert not world.settle(claims, aborted()).lost
    assert told(world) == []


def test_a_receiver_that_is_gone_is_sent_nothing_any_more(world: World, http: Requesting) -> None:
    """410: the endpoint of its group is disabled, with a reason and an audit; another group's stays."""
    for name in ("team", "other"):
        world.store.url_groups.put_endpoints(name, [NewEndpoint(uuid4(), URL, None)], None, SOMEBODY)
    claim = post(http, group="team")
    gone = Settlement(status=Status.ABORTED, reason="HTTP_GONE", error="HTTP 410", response=Response(410))
    world.settle([claim], gone)
    states = {group.name: [endpoint.enabled for endpoint in group.endpoints] for group in world.store.url_groups.all()}
    assert states == {"team": [False], "other": [True]}
    assert world.sql("select by, action, target from todoku_audit where action = 'disable'") == [
        ("todoku", "disable", f"endpoint:{URL}")
    ]
    assert len(told(world)) == 1


def test_what_was_answered_is_kept_with_the_attempt(world: World, http: Requesting) -> None:
    """S4: status and body of each failed attempt; where nobody answered, none."""
    message = http.post()
    http.run(answered(503, b"busy \xff"))
    http.run(aborted("NETWORK"))
    story = world.store.messages.story(message)
    assert story is not None
    kept = Response(503, {"Content-Type": "text/plain"}, b"busy \xff")
    assert [attempt.response for attempt in story.attempts] == [kept, None]
    assert world.sql("select response_status from todoku_attempt order by epoch") == [(503,), (None,)]
