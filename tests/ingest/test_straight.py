"""Posts taken straight from the wire: what is plain never meets ASGI, and from outside the two ways are one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

import todoku
from tests.daemon.running import until
from tests.ingest.conftest import STRIPE
from tests.ingest.signers import event
from tests.support.serving import Server, received, serving_events
from tests.support.world import World
from todoku.api.ingest import IngestEndpoint


@pytest.fixture
def server(box: todoku.App) -> Iterator[Server]:
    with serving_events(box, STRIPE.verifier()) as server:
        yield server


def request(id: str, *more: str, version: str = "1.1", body: bytes | None = None) -> bytes:
    """A signed event, whole."""
    body = event(id=id) if body is None else body
    signed = [f"{name}: {value}" for name, value in STRIPE.arrived(body).headers.items()]
    lines = [f"POST /ingest/stripe HTTP/{version}", "Host: a.test", *signed, f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def names(answer: bytes) -> list[str]:
    """The status line of an answer and the names of its headers."""
    status, *headers = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return [status, *sorted(line.partition(":")[0].lower() for line in headers)]


def values(answers: bytes, name: str) -> list[str]:
    """What a header says in answers that came one after the other."""
    lines = [line.partition(": ") for line in answers.decode().split("\r\n")]
    return [value for key, _, value in lines if key.lower() == name]


def stored(world: World) -> int:
    return int(world.sql("select count(*) from todoku_message")[0][0])


@pytest.fixture
def without_asgi(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object) -> None:
        raise AssertionError("this went through ASGI")

    monkeypatch.setattr(IngestEndpoint, "serve", serve)


def test_a_plain_event_never_meets_asgi(server: Server, world: World, without_asgi: None) -> None:
    answer = server.raw(request("evt_1", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 204")
    assert stored(world) == 1


@pytest.mark.parametrize(
    ("more", "version", "path"),
    [
        ((), "1.0", b"stripe"),
        (("Expect: 100-continue",), "1.1", b"stripe"),
        ((), "1.1", b"str%69pe"),
        ((), "1.1", b"stripe?x=y"),
    ],
    ids=["HTTP/1.0", "100-continue", "percent", "query"],
)
def test_what_is_unusual_goes_the_ordinary_way_and_arrives(
    server: Server, world: World, more: tuple[str, ...], version: str, path: bytes
) -> None:
    unusual = request("evt_1", "Connection: close", *more, version=version)
    answer = server.raw(unusual.replace(b"/ingest/stripe", b"/ingest/" + path))
    assert answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 204")
    assert stored(world) == 1


def test_nobody_outside_can_tell_the_two_ways_apart(server: Server, world: World) -> None:
    """A body that comes in parts goes through ASGI: the answers say the same, stored or refused."""

    def in_parts(sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head, _, body = sent.partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n")
            # Something must lie between the two parts, or they come as one: another request, answered meanwhile.
            assert server.client().get("/healthz").status_code == 200
            connection.sendall(body)
            return received(connection)

    whole, parted = server.raw(request("evt_1", "Connection: close")), in_parts(request("evt_2", "Connection: close"))
    assert names(whole) == names(parted)
    assert stored(world) == 2
    bad = request("evt_3", "Connection: close").replace(b"evt_3", b"evt_4")
    whole, parted = server.raw(bad), in_parts(bad)
    assert names(whole) == names(parted)
    assert whole.startswith(b"HTTP/1.1 400")
    assert stored(world) == 2


def test_requests_in_a_row_are_answered_in_their_order_whichever_way_they_go(server: Server, world: World) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: a.test\r\nX-Request-Id: r-3\r\n\r\n"
    answers = server.raw(
        request("evt_1", "X-Request-Id: r-1") + request("evt_2", "X-Request-Id: r-2") + health
        + request("evt_3", "X-Request-Id: r-4") + request("evt_4", "X-Request-Id: r-5", "Connection: close")
    )  # fmt: skip
    assert values(answers, "x-request-id") == ["r-1", "r-2", "r-3", "r-4", "r-5"]
    assert values(answers, "x-event-id") == ["evt_1", "evt_2", "evt_3", "evt_4"]
    assert stored(world) == 4


def test_one_connection_posts_again_and_again(server: Server, world: World, without_asgi: None) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as connection:
        for number in range(20):
            connection.sendall(request(f"evt_{number}"))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(65_536)
            assert values(answer, "x-event-id") == [f"evt_{number}"]
    assert stored(world) == 20


def test_an_event_whose_sender_hung_up_is_stored_and_holds_up_nobody(server: Server, world: World) -> None:
    """Nobody hears the answer; the source will send it again, and it is a duplicate."""
    for number in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(request(f"evt_{number}"))
    until(lambda: stored(world) == 5, "every event")
    assert server.raw(request("evt_0", "Connection: close")).startswith(b"HTTP/1.1 204")
    assert stored(world) == 5
