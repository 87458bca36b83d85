"""Requests through a worker: nothing is lost, nobody holds up the others, and a host that is down burns no retries."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from standardwebhooks import Webhook

import todoku
from tests.destinations.http.conftest import KEYS, settings
from tests.destinations.http.receiving import Received, Receiver, answer, receiving, silent
from tests.support.crew import Crew, until
from tests.support.ports import free_port
from tests.support.requesting import Requesting
from tests.support.world import World
from todoku.core.http_request import SCHEMES, Callback
from todoku.destinations.http_sender import Requests
from todoku.engine.registry import Target
from todoku.engine.worker import breakers


@pytest.fixture
def http(world: World) -> Requesting:
    return Requesting(world)


def serves(crew: Crew, *, at_once: int = 8) -> Crew:
    """Let the workers of a crew send requests, to this machine too."""
    sender = Requests(settings(http_timeout_sec=600.0), lambda: KEYS, chance=lambda: 0.0)
    for name in SCHEMES:
        crew.sends(sender, name=name, queue="http", batch=1, at_once=at_once)
    return crew


def test_what_is_published_arrives_and_what_fails_is_told(
    world: World, crew: Crew, http: Requesting, receiver: Receiver
) -> None:
    """The whole line: publish, claim, send, settle, history; and a callback for each end, sent like any request."""

    async def reply(request: Received, writer: Any) -> None:
        failing = request.target == "/fails"
        await answer(500 if failing else 200, b"said", x_a="1")(request, writer)

    receiver.reply = reply
    told = Callback(url=f"{receiver.url}/told")
    asked = [
        http.post(f"{receiver.url}/{what}", body=b"b", retries=0, callback=told, failure_callback=told)
        for what in ("works", "fails")
    ]
    serves(crew).drain()
    assert sorted(request.target for request in receiver.received) == ["/fails", "/told", "/told", "/works"]
    bodies = {body["status"]: body for request in receiver.received if (body := _told(request))}
    assert {status: body["sourceMessageId"] for status, body in bodies.items()} == {
        200: str(asked[0]),
        500: str(asked[1]),
    }
    assert all(base64.b64decode(body["body"]) == b"said" for body in bodies.values())
    (dead,) = world.deliveries()
    assert (dead.message_id, dead.reason, bodies[500]["dlqId"]) == (asked[1], "HTTP_5XX", f"{dead.id}-0")


def _told(request: Received) -> dict[str, Any]:
    return json.loads(request.body) if request.target == "/told" else {}


def test_a_receiver_that_never_answers_takes_its_share_and_no_more(
    crew: Crew, http: Requesting, receiver: Receiver
) -> None:
    """Issue 6: the bulkhead. More wait for it than there are slots, and everybody else is served."""
    receiver.reply = silent
    with receiving("0.0.0.0") as others:
        for _ in range(30):
            http.post(f"{receiver.url}/never")
        for number in range(20):
            for _ in range(3):
                http.post(f"http://127.0.1.{number + 1}:{others.port}/")
        with serves(crew, at_once=3).running(http_concurrency=6, drain_grace_sec=0.0):
            until(lambda: len(others.received) == 60, what="everybody else")
            until(lambda: len(receiver.received) == 3, what="its share")
            for _ in range(20):
                http.post(f"http://127.0.1.1:{others.port}/")
            until(lambda: len(others.received) == 80, what="what came later")
            assert len(receiver.received) == 3


def test_a_fast_receiver_is_sent_no_more_at_once_than_it_may(crew: Crew, http: Requesting, receiver: Receiver) -> None:
    """`http_per_host` counts connections, however much is claimed ahead."""
    for _ in range(200):
        http.post(receiver.url)
    serves(crew, at_once=4).drain()
    assert len(receiver.received) == 200
    assert receiver.connections <= 4


def test_hundreds_of_hosts_are_served(crew: Crew, http: Requesting) -> None:
    with receiving("0.0.0.0") as others:
        hosts = {f"127.0.{number // 100 + 2}.{number % 100 + 1}:{others.port}" for number in range(150)}
        for host in hosts:
            http.post(f"http://{host}/")
        serves(crew).drain()
        assert {request.value("Host") for request in others.received} == hosts


def test_a_host_that_is_down_burns_no_retries(
    world: World, crew: Crew, http: Requesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, §4: its breaker opens after a few failures; the rest waits with all its attempts, and arrives."""
    monkeypatch.setattr(breakers, "_SHORTEST", 0.5)
    port = free_port()
    for number in range(60):
        http.post(f"http://127.0.0.1:{port}/{number}", retries=0)
    with serves(crew, at_once=2).running():
        until(lambda: world.store.limits.read().destinations, what="an open breaker")
        with receiving(port=port) as receiver:
            until(lambda: len(world.deliveries(status="aborted")) + len(world.history()) == 60, what="the rest")
            lost = world.deliveries(status="aborted")
            # Ten in a row, what ran beside the tenth, and a probe now and then until the receiver is back.
            assert len(lost) <= 2 * breakers.THRESHOLD
            assert len({request.target for request in receiver.received}) == 60 - len(lost)


def test_a_worker_that_is_down_for_an_hour_loses_nothing(
    world: World, crew: Crew, http: Requesting, receiver: Receiver
) -> None:
    """Issue 6: neither what waits, nor what its worker took with it, nor what was due long ago."""
    receiver.reply = answer(503)
    asked = {http.post(receiver.url, retry_delay="60000") for _ in range(5)}
    serves(crew).drain()
    assert len(receiver.received) == 5
    asked |= {http.post(receiver.url) for _ in range(10)}
    taken = world.claim(world.worker(lease=30), limit=5)
    assert len(taken) == 5
    world.advance(3600)
    world.store.leases.reclaim()
    receiver.reply = answer(204)
    crew.drain()
    assert {delivery.message_id for delivery in world.history()} == asked
    assert not world.deliveries()
    arrived = [request.value("Upstash-Message-Id") for request in receiver.received[5:]]
    assert sorted(arrived) == sorted(str(message) for message in asked)


def test_events_go_to_an_endpoint_of_your_own(url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """`box.route("order.*", to=todoku.http(…))`: the payload as it is, CloudEvents in headers, signed."""
    monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "1")
    secrets = ["whsec_" + base64.b64encode(each * 24).decode() for each in (b"n", b"o")]
    box = todoku.App(url)
    box.migrate()
    target = todoku.http(f"{receiver.url}/hook", headers={"authorization": "Bearer x"}, secret=secrets)
    box.route("order.*", to=target)
    message = box.publish(
        "order.paid", {"n": 1}, tx=None, key="ключ", headers={"x-event-id": "e1", "todoku-http": "no"}
    )
    assert box.drain() == 1
    box.close()
    (request,) = receiver.received
    assert (request.method, request.target, json.loads(request.body)) == ("POST", "/hook", {"n": 1})
    wanted = {
        "ce-id": str(message.id),
        "ce-type": "order.paid",
        "ce-subject": "%D0%BA%D0%BB%D1%8E%D1%87",
        "Authorization": "Bearer x",
        "Content-Type": "application/json",
        "X-Event-Id": "e1",
    }
    assert {name: request.value(name) for name in wanted} == wanted
    assert not request.values("todoku-http")
    for secret in secrets:
        Webhook(secret).verify(request.body, dict(request.headers))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "ftp://a.example"}, "url cannot be"),
        ({"url": "https://user:secret@a.example"}, "contains a user name"),
        ({"url": "https://a.example", "secret": "whsec_!"}, "secret"),
        ({"url": "https://a.example", "method": "BREW"}, "method"),
        ({"url": "https://a.example", "headers": {"X": "a\nb"}}, "header X"),
        ({"url": "https://a.example", "timeout": -1}, "timeout"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_where_it_is_declared(given: dict[str, Any], said: str) -> None:
    with pytest.raises(todoku.TodokuError, match=said) as refused:
        todoku.http(**given)
    assert "secret@" not in str(refused.value)


def test_an_App_sends_requests_by_itself(url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever App a worker runs, and without any: its signing keys are made on first use."""
    monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "1")
    box = todoku.App(url)
    box.migrate()
    assert {"http://", "https://"} <= set(box.registry.names)
    targets: list[Target] = [target for target in box.registry if target.at_once is not None]
    assert [target.at_once for target in targets] == [8, 8]
    box.close()
