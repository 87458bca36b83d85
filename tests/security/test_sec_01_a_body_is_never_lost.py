"""SEC-1: a body is never lost on the wire, and never taken for another request."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

import todoku
from tests.ingest.signers import KINDS, event
from tests.support.raw_http import Answer, RawConnection, request
from tests.support.serving import Server, serving_events
from todoku.api.http_limits import LARGEST_HEAD
from todoku.store.deliveries import Filter

STRIPE = KINDS[0]
UPGRADE = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
"""What curl --http2 and the JDK's client send with the first request of a connection."""

TARGET = "/v2/publish/https://shop.example/hook"
CHUNKED = {"Transfer-Encoding": "chunked"}


@pytest.fixture
def server(box: todoku.App) -> Iterator[Server]:
    with serving_events(box, STRIPE.verifier()) as server:
        yield server


@pytest.fixture
def bearer(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.token('publish', 'read', 'operate')}"}


def stored(server: Server, status: str | None = None) -> list[bytes]:
    """The bodies of all messages, the oldest first; by the ids of deliveries, because those of messages tell
    milliseconds apart, and a fast machine stores two in one."""
    found = sorted(server.box.store.deliveries.find(Filter(), limit=500).items, key=lambda each: each.id)
    ids = [each.message_id for each in found if status in (None, each.status)]
    messages = [story.message for id in ids if (story := server.box.store.messages.story(id)) is not None]
    return [each.payload_bytes if each.payload is None else each.payload.encode() for each in messages]


def ask(server: Server, *segments: bytes) -> Answer:
    """The answer to bytes that are sent in these parts; nothing follows it."""
    with RawConnection(server.port) as connection:
        for segment in segments:
            connection.send(segment)
        return connection.answer()


def answers(server: Server, sent: bytes) -> bytes:
    """Everything that is answered until the server hangs up."""
    with RawConnection(server.port) as connection:
        connection.send(sent)
        return connection.rest()


# ----------------------------------------------------------------------------------------------- upgrades


def test_SEC_1_the_body_of_an_upgrade_that_is_not_served_is_read(server: Server, bearer: dict[str, str]) -> None:
    answer = ask(server, request("POST", TARGET, bearer | UPGRADE, b"all of it"))
    assert answer.status == 200
    assert stored(server) == [b"all of it"]


def test_SEC_1_a_body_in_the_next_segment_is_no_request(server: Server, bearer: dict[str, str]) -> None:
    """What looks like a request inside of a body is a body; the connection goes on behind it."""
    inner = request("DELETE", "/v2/messages", bearer)
    sent = request("POST", TARGET, bearer | UPGRADE, inner)
    head, body = sent[: -len(inner)], sent[-len(inner) :]
    with RawConnection(server.port) as connection:
        connection.send(head)
        connection.send(body)
        assert connection.answer().status == 200
        connection.send(request("GET", "/healthz", {"Connection": "close"}))
        assert connection.answer().json()["live"] is True
        assert connection.rest() == b"", "one answer for each request"
    assert stored(server, "pending") == [inner]


def test_SEC_1_a_list_to_delete_is_not_lost_with_an_upgrade(server: Server, bearer: dict[str, str]) -> None:
    ids = [ask(server, request("POST", TARGET, bearer, b"%d" % n)).json()["messageId"] for n in range(3)]
    body = b'{"messageIds": ["%b"]}' % ids[1].encode()
    answer = ask(
        server, request("DELETE", "/v2/messages", bearer | UPGRADE | {"Content-Type": "application/json"}, body)
    )
    assert (answer.status, answer.json()) == (200, {"cancelled": 1})
    assert stored(server, "pending") == [b"0", b"2"]


def test_SEC_1_an_event_with_an_upgrade_is_stored_as_it_came(server: Server) -> None:
    body = event()
    answer = ask(server, request("POST", "/ingest/stripe", dict(STRIPE.arrived(body).headers) | UPGRADE, body))
    assert answer.status == 204
    assert stored(server) == [body]


def test_SEC_1_chunks_with_an_upgrade_are_read(server: Server, bearer: dict[str, str]) -> None:
    head = request("POST", TARGET, bearer | UPGRADE | CHUNKED)
    assert ask(server, head + b"3\r\nall\r\n", b"6\r\n of it\r\n0\r\n\r\n").status == 200
    assert stored(server) == [b"all of it"]


def test_SEC_1_requests_in_a_row_keep_their_own_bodies(server: Server, bearer: dict[str, str]) -> None:
    """Upgrades between others, all in one segment."""
    bodies = [b"first", b"second", b"third", b"fourth", b"fifth"]
    sent = [request("POST", TARGET, bearer | (UPGRADE if n % 3 else {}), body) for n, body in enumerate(bodies)]
    with RawConnection(server.port) as connection:
        connection.send(b"".join(sent))
        assert [connection.answer().status for _ in bodies] == [200] * 5
    assert stored(server) == bodies


def test_SEC_1_wherever_a_request_is_cut_its_body_is_the_same(server: Server, bearer: dict[str, str]) -> None:
    sent = request("POST", TARGET, bearer | UPGRADE, b"GET / HTTP/1.1\r\n\r\n")
    cuts = range(1, len(sent), 7)
    for cut in cuts:
        with RawConnection(server.port) as connection:
            connection.send(sent[:cut])
            # An answer on another connection: by then the server has read the first part.
            assert ask(server, request("GET", "/healthz")).status == 200
            connection.send(sent[cut:])
            assert connection.answer().status == 200
    assert stored(server) == [b"GET / HTTP/1.1\r\n\r\n"] * len(cuts)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: `make system-packages`")
def test_SEC_1_curl_with_http2_loses_nothing(server: Server, bearer: dict[str, str]) -> None:
    token = f"Authorization: {bearer['Authorization']}"
    curl = ["curl", "-sS", "--http2", "--noproxy", "*", "-H", token, "-d", "by curl", server.url + TARGET]
    subprocess.run(curl, check=True, capture_output=True, timeout=60)
    assert stored(server) == [b"by curl"]


# ------------------------------------------------------------------------------------- how a body ends


def test_SEC_1_trailers_are_no_headers(server: Server, bearer: dict[str, str]) -> None:
    """Neither options nor a token may come behind the body."""
    head = request("POST", TARGET, bearer | CHUNKED)
    answer = ask(server, head + b"2;name=value\r\nhi\r\n0\r\nUpstash-Delay: 50s\r\nUpstash-Method: nonsense\r\n\r\n")
    assert answer.status == 200
    assert stored(server) == [b"hi"]
    trailer = f"Authorization: {bearer['Authorization']}".encode()
    assert ask(server, request("POST", TARGET, CHUNKED) + b"2\r\nhi\r\n0\r\n" + trailer + b"\r\n\r\n").status == 401
    body = event()
    signature = b"".join(
        b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in STRIPE.arrived(body).headers.items()
    )
    event_in_chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, signature)
    assert ask(server, request("POST", "/ingest/stripe", CHUNKED) + event_in_chunks).status == 400
    assert stored(server) == [b"hi"]


def test_SEC_1_trailers_have_a_largest_size(server: Server, bearer: dict[str, str]) -> None:
    with RawConnection(server.port) as connection:
        connection.send(request("POST", TARGET, bearer | CHUNKED) + b"2\r\nhi\r\n0\r\nX-Endless: ")
        try:
            for _ in range(64):
                connection.send(b"a" * LARGEST_HEAD)
        except ConnectionError:
            pass  # refused while more of it was sent
        assert b" 431 " in connection.rest()[:20]
    assert stored(server) == []


@pytest.mark.parametrize(
    ("first", "more"),
    [
        ("POST {} HTTP/1.0", []),
        ("POST {} HTTP/1.1", ["Connection: close"]),
        ("POST {} HTTP/1.1", []),
        ("DELETE {} HTTP/1.0", []),
    ],
)
def test_SEC_1_bytes_behind_a_request_without_a_length_are_not_dropped(
    server: Server, bearer: dict[str, str], first: str, more: list[str]
) -> None:
    """Its sender may have meant them as the body: the request is refused, and nothing is stored or deleted."""
    assert ask(server, request("POST", TARGET, bearer, b"it stays")).status == 200
    target = TARGET if first.startswith("POST") else "/v2/messages"
    lines = [first.format(target), "Host: localhost", f"Authorization: {bearer['Authorization']}", *more, "", ""]
    answer = answers(server, "\r\n".join(lines).encode() + b"{a body}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert stored(server, "pending") == [b"it stays"]


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (400, "POST {} HTTP/1.1|Transfer-Encoding: gzip, chunked"),
        (400, "POST {} HTTP/1.1|Transfer-Encoding: chunked|Transfer-Encoding: chunked"),
        (400, "POST {} HTTP/1.1|Transfer-Encoding: chunked|Content-Length: 12"),
        (400, "POST {} HTTP/1.1|Content-Length: 12|Transfer-Encoding: chunked"),
        (400, "POST {} HTTP/1.1|Connection: Upgrade|Upgrade: h2c|Content-Length: 3|Transfer-Encoding: chunked"),
        (400, "POST {} HTTP/1.0|Transfer-Encoding: chunked"),
        (505, "POST {} HTTP/2.0|Transfer-Encoding: chunked"),
        (505, "POST {} HTTP/0.9|Content-Length: 12"),
        (400, "PRI * HTTP/2.0"),
        (400, "CONNECT localhost:80 HTTP/1.1|Content-Length: 12"),
        (417, "POST {} HTTP/1.1|Expect: something|Content-Length: 12"),
        (400, "POST {}#fragment HTTP/1.1|Content-Length: 12"),
    ],
)
def test_SEC_1_what_is_not_certain_is_refused_and_the_connection_closed(
    server: Server, bearer: dict[str, str], status: int, head: str
) -> None:
    first, *more = head.format(TARGET).split("|")
    lines = [first, "Host: localhost", f"Authorization: {bearer['Authorization']}", *more, "", ""]
    if first.startswith("PRI"):
        lines = [first, "", "SM", "", ""]
    answer = answers(
        server, "\r\n".join(lines).encode() + b"2\r\nhi\r\n0\r\n\r\n" + request("POST", TARGET, bearer, b"x")
    )
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert stored(server) == [], "what follows is no request either"


def test_SEC_1_a_request_that_is_certain_is_answered_whatever_follows(server: Server, bearer: dict[str, str]) -> None:
    for garbage in (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", request("CONNECT", "a:1")):
        answer = answers(server, request("POST", TARGET, bearer, b"certain") + garbage)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 ") == 1
    assert stored(server) == [b"certain"] * 3


def test_SEC_1_a_body_that_breaks_off_is_not_stored(server: Server, bearer: dict[str, str]) -> None:
    broken = request("POST", TARGET, bearer | CHUNKED) + b"2\r\nhi\r\nnonsense\r\n"
    assert answers(server, broken).startswith(b"HTTP/1.1 400 ")
    with RawConnection(server.port) as connection:
        connection.send(request("POST", TARGET, bearer, b"half of it")[:-4])
        connection.socket.shutdown(1)
        connection.rest()
    assert ask(server, request("GET", "/healthz")).status == 200
    assert stored(server) == []


def test_SEC_1_other_forms_of_a_request_keep_their_bodies(server: Server, bearer: dict[str, str]) -> None:
    absolute = request("POST", f"http://localhost{TARGET}", bearer, b"absolute")
    assert ask(server, absolute).status == 200
    old = request("POST", TARGET, bearer, b"HTTP/1.0").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert answers(server, old).startswith(b"HTTP/1.1 200 ")
    with RawConnection(server.port) as connection:
        sent = request("POST", TARGET, bearer | {"Expect": "100-continue"}, b"expected")
        connection.send(sent[:-8])
        assert connection.answer().status == 100
        connection.send(sent[-8:])
        assert connection.answer().status == 200
    assert stored(server) == [b"absolute", b"HTTP/1.0", b"expected"]
