"""Requests that nobody means well with: slow, huge, malformed, packed. The server answers, hangs up, and lives on."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import todoku
from tests.support.serving import Server, received, serving
from todoku.api import http_limits

HOST = b"Host: localhost\r\n"
JSON = {"content-type": "application/json"}


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for which what would take ten seconds takes a moment."""
    monkeypatch.setenv("TODOKU_API_RECEIVE_SEC", "0.3")
    box = todoku.App(f"sqlite:///{tmp_path}/todoku.db")
    box.migrate()
    with serving(box) as server:
        yield server
    box.close()


@pytest.fixture(autouse=True)
def lives_on(server: Server) -> Iterator[None]:
    """Whatever somebody sent, the next one is served."""
    yield
    assert server.client().get("/healthz").json()["live"] is True


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem(answer: bytes) -> dict[str, object]:
    """The problem in a raw answer: every refusal is one, also before there is a request."""
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"x-request-id: " in head
    return dict(json.loads(text))


# ---------------------------------------------------------------------------------------------- slow


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow:", b"\r\n\r\n\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(hasty: Server, sent: bytes) -> None:
    answer = hasty.raw(sent)
    assert status(answer) == 408
    assert problem(answer)["status"] == 408


def test_a_head_that_drips_has_one_deadline(hasty: Server) -> None:
    """Each byte in time is not enough: the whole head must come."""
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Drip: ")
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        answer = received(connection)
        stop.set()
        dripping.join()
    assert status(answer) == 408


def test_an_idle_connection_is_not_kept_by_line_breaks(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        assert connection.recv(15).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert b" 408 " in received(connection)


def test_a_body_that_does_not_come_is_not_waited_for(hasty: Server) -> None:
    token = hasty.token("admin").encode()
    answer = hasty.raw(
        b"POST /api/v1/tokens HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + token + b"\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    assert problem(answer)["status"] == 408
    assert b"connection: close" in answer


# ---------------------------------------------------------------------------------------------- huge


def test_a_head_has_a_largest_size(server: Server) -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + HOST
    assert status(server.raw(one + b"X-Big: " + b"a" * (http_limits.LARGEST_HEAD + 10) + b"\r\n\r\n")) == 431
    assert status(server.raw(one + b"X-Endless: " + b"a" * (4 << 20))) == 431, "it never ends, and is not waited for"
    assert status(server.raw(one + b"".join(b"X-%d: 1\r\n" % n for n in range(300)) + b"\r\n")) == 431
    assert (
        status(server.raw(b"GET /" + b"a" * (http_limits.LARGEST_URL + 10) + b" HTTP/1.1\r\n" + HOST + b"\r\n")) == 414
    )
    assert status(server.raw(b"GET /" + b"a" * (4 << 20))) == 431


def test_a_body_has_a_largest_size_and_its_sender_gets_to_read_so(server: Server) -> None:
    """413, before reading where it says its size; and by what comes where it does not."""
    client = server.client("admin")
    told = client.post("/api/v1/tokens", content=b"x" * (2 << 20), headers=JSON)
    assert told.status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(64):
            yield b"x" * 65_536

    chunked = client.post("/api/v1/tokens", content=parts(), headers=JSON)
    assert chunked.status_code == 413


def test_what_is_packed_is_not_unpacked(server: Server) -> None:
    """A gzip bomb stays as small as it came."""
    bomb = gzip.compress(b"0" * (8 << 20))
    for packing in ("gzip", "deflate", "br", "gzip, gzip"):
        answer = server.client("admin").post(
            "/api/v1/tokens", content=bomb, headers={"content-type": "application/json", "content-encoding": packing}
        )
        assert answer.status_code == 415


def test_a_body_may_not_be_deeper_than_a_stack(server: Server) -> None:
    deep = b'{"name": "x", "topic": "a.b", "why": "x", "payload": ' + b"[" * 200_000
    answer = server.client("admin").post("/api/v1/schedules", content=deep, headers=JSON)
    assert answer.status_code == 400


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_is_read(server: Server, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = server.client("admin").post("/api/v1/tokens", content=b'{"name": "x"}', headers=headers)
    assert answer.status_code == 415


# ----------------------------------------------------------------------------------------- malformed


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: a\rb\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X A: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A : b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\r\n folded\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b": nameless\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
def test_what_is_no_http_is_told_so(server: Server, sent: bytes) -> None:
    """CR and LF where they do not belong, two lengths, chunks that are none: nothing of it becomes a request."""
    answer = server.raw(sent)
    assert problem(answer)["status"] == 400
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n", b"fffffffffffffffff\r\n{}", b"2\r\n{}XX0\r\n\r\n"]
)
def test_chunks_that_are_none_end_the_request(server: Server, chunks: bytes) -> None:
    token = server.token("admin").encode()
    head = b"POST /api/v1/tokens HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + token + b"\r\n"
    answer = server.raw(head + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer == b"" or status(answer) == 400
    assert {one.name for one in server.box.store.tokens.rows()} == {"ada"}, "nothing was made"


def test_an_upgrade_is_to_nothing(server: Server) -> None:
    answer = server.raw(
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert status(answer) == 200


def test_requests_in_a_row_are_answered_in_their_order(server: Server) -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: r-%d\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: r-9\r\nConnection: close\r\n\r\n"
    answer = server.raw(one % 1 + one % 2 + last)
    ids = [line.partition(b": ")[2] for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert ids == [b"r-1", b"r-2", b"r-9"]
