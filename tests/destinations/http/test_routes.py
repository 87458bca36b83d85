"""Routes to URLs: the obvious line is an HTTP destination, with the options one expects, or is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import todoku
from tests.destinations.http.receiving import Receiver, answer, silent
from tests.support.world import World


@pytest.fixture
def box(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[todoku.App]:
    """An App on the world's database and clock that may send to this machine."""
    monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "true")
    box = todoku.App(url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


def test_a_route_to_a_url_sends_to_that_url(box: todoku.App, receiver: Receiver) -> None:
    """`to="https://…"` is the same as `to=todoku.http("https://…")`, headers included."""
    box.route("order.*", to=f"{receiver.url}/hook", headers={"authorization": "Bearer x"})
    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 1
    (request,) = receiver.received
    assert (request.target, request.body, request.value("Authorization")) == ("/hook", b'{"n":1}', "Bearer x")
    assert request.value("ce-type") == "order.created"


def test_two_routes_to_one_url_are_one_destination(box: todoku.App, receiver: Receiver) -> None:
    for topic in ("order.*", "stock.*"):
        box.route(topic, to=f"{receiver.url}/hook", headers={"x-a": "1"}, timeout=5)
    box.publish_many([("order.created", 1), ("stock.moved", 2)], tx=None)
    assert box.drain() == 2
    with pytest.raises(todoku.InvalidSetting, match="two destinations are named"):
        box.route("user.*", to=f"{receiver.url}/hook", headers={"x-a": "2"})
    box.route("user.*", to=f"{receiver.url}/hook", headers={"x-a": "2"}, name="users")
    assert "users" in box.registry.names


def test_a_hook_may_be_a_url(box: todoku.App, receiver: Receiver) -> None:
    box.after("succeeded", to=f"{receiver.url}/ended", topic="order.*")
    box.route("order.*", to=lambda message: None, name="nowhere")
    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 2
    assert [request.target for request in receiver.received] == ["/ended"]


@pytest.mark.parametrize("where", ["http", "route"])
def test_how_often_is_said_by_the_destination_or_by_its_route(
    box: todoku.App, world: World, receiver: Receiver, where: str
) -> None:
    receiver.reply = answer(500)
    told: dict[str, Any] = {"max_attempts": 2, "backoff": todoku.table(0)}
    to = todoku.http(f"{receiver.url}/hook", **(told if where == "http" else {}))
    box.route("order.*", to=to, **(told if where == "route" else {}))
    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 2
    assert [(row.status, row.attempts, row.max_attempts) for row in world.deliveries()] == [("aborted", 2, 2)]


def test_the_route_goes_before_its_destination(box: todoku.App, world: World, receiver: Receiver) -> None:
    to = todoku.http(f"{receiver.url}/hook", max_attempts=5, headers={"X-A": "1", "X-B": "1"})
    box.route("order.*", to=to, max_attempts=1, headers={"x-b": "2"})
    receiver.reply = answer(500)
    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 1
    assert [row.status for row in world.deliveries()] == ["aborted"]
    (request,) = receiver.received
    assert (request.value("X-A"), request.value("X-B")) == ("1", "2")


@pytest.mark.parametrize("url_alone", [True, False])
def test_the_time_limit_of_a_route_is_that_of_its_requests(
    box: todoku.App, world: World, receiver: Receiver, url_alone: bool
) -> None:
    """The request ends there, and the reason says so: it is not the attempt that was cut off."""
    url = f"{receiver.url}/hook"
    box.route("order.*", to=url if url_alone else todoku.http(url, timeout=60), max_attempts=1, timeout=0.05)
    receiver.reply = silent
    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 1
    (dead,) = world.deliveries()
    assert (dead.status, dead.reason, dead.error) == (
        "aborted",
        "HTTP_TIMEOUT",
        "no complete response of 127.0.0.1 within 0.05 s",
    )


def test_a_plain_function_and_a_name_take_what_they_can(box: todoku.App, world: World) -> None:
    tried: list[int] = []

    def fails(message: todoku.Outgoing) -> None:
        tried.append(message.attempt)
        raise ConnectionError

    box.route("order.*", to=fails, max_attempts=3, backoff=todoku.table(0), timeout=7)
    box.route("stock.*", to="elsewhere", max_attempts=4, timeout=8)
    box.publish_many([("order.created", 1), ("stock.moved", 2)], tx=None)
    found = {row.destination: row.max_attempts for row in world.deliveries()}
    assert found == {"fails": 3, "elsewhere": 4}
    assert sorted(world.sql("select destination, timeout from todoku_delivery")) == [("elsewhere", 8.0), ("fails", 7.0)]
    box.drain()
    assert tried == [1, 2, 3]


def _job() -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("ftp://host/x?token=1", {}, r"'ftp://host/x.*' is no destination"),
        ("https://", {}, "url cannot be 'https://'"),
        ("elsewhere", {"backoff": todoku.table(1)}, "backoff is decided where 'elsewhere' is served"),
        ("elsewhere", {"ordered": True, "on_dead": "skip"}, "on_dead is decided where 'elsewhere' is served"),
        ("elsewhere", {"headers": {"a": "b"}}, "headers are for HTTP requests"),
        (_job, {"headers": {"a": "b"}}, "headers are for HTTP requests"),
        ("https://host", {"headers": [("a", "b")]}, "headers is no mapping"),
        ("https://host", {"max_attempts": 0}, "max_attempts cannot be 0"),
        ("https://host", {"backoff": 3}, "backoff cannot be 3"),
        ("https://host", {"timeout": 0}, "timeout cannot be 0"),
        ("https://host", {"on_dead": "skip"}, 'on_dead="skip" is for messages in order'),
        ("https://host", {"ordered": True, "on_dead": "drop"}, "on_dead cannot be 'drop'"),
        ("https://host", {"retries": 3}, "a route has no option retries"),
    ],
)
def test_what_a_route_cannot_do_is_refused_at_once(box: todoku.App, to: Any, options: Any, message: str) -> None:
    with pytest.raises(todoku.TodokuError, match=message) as refused:
        box.route("order.*", to=to, **options)
    assert refused.value.hint
    assert "token=1" not in str(refused.value)
    assert box.routes == ()


def test_a_job_keeps_its_own_options(box: todoku.App) -> None:
    job = box.job(_job)
    with pytest.raises(todoku.InvalidSetting, match="a job has its own max_attempts and ordered"):
        box.route("order.*", to=job, max_attempts=2, ordered=True)
    with pytest.raises(todoku.InvalidSetting, match='on_dead="skip" is for messages in order'):
        box.job("other", on_dead="skip")(_job)


def test_routes_to_one_destination_agree_about_what_its_worker_decides(box: todoku.App) -> None:
    to = todoku.http("https://partner.example/hooks")
    box.route("order.*", to=to, ordered=True, on_dead="skip", backoff=todoku.table(1))
    with pytest.raises(todoku.InvalidSetting, match="differ in on_dead"):
        box.route("stock.*", to=to, ordered=True, backoff=todoku.table(1))
    with pytest.raises(todoku.InvalidSetting, match="differ in backoff"):
        box.route("stock.*", to=to, ordered=True, on_dead="skip")
    box.route("stock.*", to=to, ordered=True, on_dead="skip", backoff=todoku.table(1), max_attempts=2)
    assert [route.max_attempts for route in box.routes] == [box.settings.max_attempts, 2]
