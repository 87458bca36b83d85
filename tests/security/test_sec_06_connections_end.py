"""SEC-6: connections end. Idle, half-sent and half-read ones have a deadline, and held ones keep no client out."""

from __future__ import annotations

import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

import todoku
from tests.daemon.running import Shop, until
from tests.support.migrated import copy_migrated
from tests.support.raw_http import RawConnection, request
from tests.support.serving import Server, serving
from tests.support.world import Backend
from todoku.api.connections import bounds_of, network_of
from todoku.core.errors import InvalidSetting
from todoku.core.settings import Settings
from todoku.store.sqlite.database import file_path

TARGET = "/v2/publish/https://shop.example/hook"
SHORT = {"API_IDLE_SEC": "0.3", "API_RECEIVE_SEC": "0.3"}
LONG = {"API_IDLE_SEC": "600", "API_RECEIVE_SEC": "600"}
"""No deadline passes by itself: what ends, ends because of a bound."""
FEW = LONG | {"API_CONNECTIONS": "32", "API_CONNECTIONS_PER_ADDRESS": "24"}

Serve = Callable[[dict[str, str]], Server]


@pytest.fixture
def serve(backend: Backend, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server with these settings."""
    with ExitStack() as stack:

        def start(settings: dict[str, str]) -> Server:
            for name, value in settings.items():
                monkeypatch.setenv(f"TODOKU_{name}", value)
            if backend == "sqlite":
                copy_migrated(url)
            box = todoku.App(url)
            stack.callback(box.close)
            return stack.enter_context(serving(box))

        yield start


def number_open(server: Server) -> int:
    return len(server.http._server.server_state.connections)


def bearer(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.token('publish', 'read')}"}


def is_served(connection: RawConnection) -> bool:
    """Whether this connection still gets an answer."""
    try:
        connection.send(request("GET", "/healthz"))
        return connection.answer().status == 200
    except ConnectionError:
        return False


# --------------------------------------------------------------------------------------------- deadlines


def test_SEC_6_an_answer_to_an_unread_body_ends_the_connection(serve: Serve) -> None:
    server = serve(LONG)
    smuggled = request("GET", "/healthz")
    for path in (TARGET, "/v2/nothing", "/healthz", "/ingest/nobody"):
        with RawConnection(server.port) as connection:
            connection.send(request("POST", path, {"Content-Length": "100000", "Content-Encoding": "gzip"}))
            answer = connection.answer()
            assert answer.status in (400, 401, 404, 405, 415)
            assert answer.headers["connection"] == "close"
            with suppress(ConnectionError):
                connection.send(b"x" * 99_000 + smuggled * 40)
            assert connection.rest() == b"", "what still comes is neither a body nor a request"


def test_SEC_6_an_answer_to_a_body_that_came_keeps_the_connection(serve: Serve) -> None:
    server = serve(LONG)
    with RawConnection(server.port) as connection:
        for _ in range(3):
            connection.send(request("POST", TARGET, None, b"x" * 1000))
            answer = connection.answer()
            assert (answer.status, answer.headers.get("connection")) == (401, None)


@pytest.mark.parametrize("first", [b"", request("GET", "/healthz")])
def test_SEC_6_an_idle_connection_ends(serve: Serve, first: bytes) -> None:
    server = serve(SHORT)
    with RawConnection(server.port) as connection:
        connection.send(first)
        connection.rest()
    until(lambda: number_open(server) == 0, "no connection")


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v2/pub",
        b"POST /v2/publish/https://shop.example HTTP/1.1\r\nHost: a\r\n",
        request("POST", TARGET, {"Content-Length": "10", "Authorization": "Bearer {}"}) + b"half",
        request("POST", TARGET, {"Transfer-Encoding": "chunked", "Authorization": "Bearer {}"}) + b"4\r\nhalf",
        request("POST", "/ingest/nobody", {"Content-Length": "10"}) + b"half",
    ],
)
def test_SEC_6_what_is_half_sent_is_not_waited_for(serve: Serve, sent: bytes) -> None:
    server = serve(SHORT)
    with RawConnection(server.port) as connection:
        connection.send(sent.replace(b"{}", server.token("publish").encode()))
        assert connection.answer().status == 408
        assert connection.rest() == b""
    until(lambda: number_open(server) == 0, "no connection")


def test_SEC_6_a_client_that_does_not_read_its_answers_is_dropped(serve: Serve) -> None:
    server = serve(LONG | {"API_RECEIVE_SEC": "1"})
    headers = bearer(server)
    with RawConnection(server.port) as connection:
        connection.send(request("POST", TARGET, headers, b"x" * 1_000_000))
        message = connection.answer().json()["messageId"]
    with RawConnection(server.port, receive_buffer=4096) as connection:
        connection.send(request("GET", f"/v2/messages/{message}", headers) * 50)
        until(lambda: number_open(server) > 0, "a connection")
        until(lambda: number_open(server) == 0, "the server to drop it")
        assert len(connection.rest()) < 50_000_000


# ------------------------------------------------------------------------------------------------ bounds


@contextmanager
def files_limited_to(number: int) -> Iterator[None]:
    """What is started meanwhile may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_SEC_6_held_connections_do_not_keep_a_health_check_out(shop: Shop) -> None:
    """230 of them, and the daemon may open 200 files."""
    with files_limited_to(200):
        daemon = shop.start("run", "--app", "shop:box", **{f"TODOKU_{name}": value for name, value in LONG.items()})
    daemon.until_ready()
    beginnings = [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost:",
        request("POST", "/ingest/nobody", {"Content-Length": "10"}) + b"half",
        request("GET", "/healthz"),
    ]
    with ExitStack() as stack:
        for number in range(230):
            held = stack.enter_context(RawConnection(daemon.port))
            with suppress(ConnectionError):  # it may be dropped for the next ones already
                held.send(beginnings[number % len(beginnings)])
        for path in ("/healthz", "/readyz") * 10:
            with RawConnection(daemon.port) as connection:
                connection.send(request("GET", path))
                assert connection.answer().status == 200
    assert daemon.stop() == 0


def test_SEC_6_a_burst_of_connections_does_not_either(shop: Shop) -> None:
    """The clients connect without waiting for each other: the server finds them all at once."""
    with files_limited_to(200):
        daemon = shop.start("run", "--app", "shop:box", **{f"TODOKU_{name}": value for name, value in LONG.items()})
    daemon.until_ready()
    with ExitStack() as stack:
        for _ in range(500):
            held = stack.enter_context(socket.socket())
            held.setblocking(False)
            held.connect_ex(("127.0.0.1", daemon.port))
        for _ in range(10):
            assert daemon.ask("/healthz")[0] == 200


def test_SEC_6_one_address_takes_the_room_of_itself_alone(serve: Serve) -> None:
    server = serve(FEW)
    with ExitStack() as stack:
        others = [stack.enter_context(socket.socket()) for _ in range(4)]
        for other in others:
            other.settimeout(60)
            other.bind(("127.0.0.2", 0))
            other.connect(("127.0.0.1", server.port))
        held = [stack.enter_context(RawConnection(server.port)) for _ in range(60)]
        assert is_served(held[-1])
        assert number_open(server) <= 24 + 4
        assert not is_served(held[0]), "the oldest made room"
        for other in others:
            other.sendall(request("GET", "/healthz"))
            assert other.recv(15) == b"HTTP/1.1 200 OK"


def test_SEC_6_who_is_being_answered_is_not_dropped(serve: Serve, backend: Backend, url: str) -> None:
    """Where every connection is busy, health is served, and every other request gets 503."""
    server = serve(FEW | {"API_CONNECTIONS": "16", "API_CONNECTIONS_PER_ADDRESS": "16"})
    headers = bearer(server)
    with RawConnection(server.port) as connection:  # the token is known from here on
        connection.send(request("POST", TARGET, headers, b"before"))
        assert connection.answer().status == 200
    until(lambda: number_open(server) == 0, "no connection")
    with ExitStack() as stack:
        with nothing_is_written(backend, url):
            busy = [stack.enter_context(RawConnection(server.port)) for _ in range(16)]
            for connection in busy:
                connection.send(request("POST", TARGET, headers, b"busy"))
            tasks = server.http._server.server_state.tasks
            until(lambda: len(tasks) == 16, "sixteen requests that wait for the database")
            for _ in range(40):
                with RawConnection(server.port) as late:
                    late.send(request("GET", "/healthz"))
                    assert late.answer().status == 200
            with RawConnection(server.port) as late:
                late.send(request("POST", TARGET, headers, b"late"))
                refused = late.answer()
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert [connection.answer().status for connection in busy] == [200] * 16


@contextmanager
def nothing_is_written(backend: Backend, url: str) -> Iterator[None]:
    """Hold the lock that every publish waits for."""
    if backend == "sqlite":
        holding = sqlite3.connect(file_path(url), isolation_level=None)
        holding.execute("begin immediate")
        try:
            yield
        finally:
            holding.rollback()
            holding.close()
    else:
        with psycopg.connect(url) as connection:
            connection.execute("lock table todoku_message in exclusive mode")
            yield


def test_SEC_6_the_bounds_follow_from_the_files_that_may_be_open() -> None:
    with files_limited_to(200):
        bounds = bounds_of(Settings())
        assert bounds.connections + bounds.backlog < 200 - 64
        assert bounds.per_address < bounds.connections
        with pytest.raises(InvalidSetting, match="api_connections"):
            bounds_of(Settings(api_connections=200))


def test_SEC_6_an_address_is_one_however_it_is_written() -> None:
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")
    assert network_of("2001:db8:0:1::1") == network_of("2001:0db8:0000:0001:ffff::2%eth0")
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8:0:2::1")
