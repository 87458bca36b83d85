"""SEC-5: without a token, and from elsewhere, one sees health and nothing else; errors quote no query of a URL."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import todoku
from tests.daemon.running import Shop, until
from tests.support.raw_http import Answer, ask, send
from tests.support.serving import Server
from tests.support.world import World
from todoku.core.outcome import Abort, Retry, error_text
from todoku.core.settings import Settings
from todoku.daemon.http_thread import is_local, listen
from todoku.destinations.http_sender import OutgoingPost, Sender
from todoku.web.sign_in import SignInEntrance

TOKEN = "the-token-of-these-tests-0123456789"
READ = ("/api/messages", "/metrics", "/readyz?verbose", "/readyz?verbose=1", "/readyz?a=1&verbose")
HEALTH = ("/healthz", "/readyz")
PAGES = ("/", "/account", "/users")
"""The dashboard: for people who have signed in, wherever they are."""
FOREIGN = (
    "evil.example",
    "192.168.0.7",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "",
    "[",
    "a@localhost.x",
)
HERE = ("localhost", "localhost:8320", "127.0.0.1", "[::1]:8320", "app.localhost", "127.9.9.9")
PASSED_ON = ("Forwarded: for=10.0.0.1", "X-Forwarded-For: 10.0.0.1", "X-Forwarded-Host: a", "x-forwarded-proto: https",
             "X-Forwarded-Anything: 1")  # fmt: skip


@pytest.fixture
def started(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts a server: for this machine alone, or for others too."""
    monkeypatch.setenv("TODOKU_TOKEN", TOKEN)
    boxes: list[todoku.App] = []
    servers: list[Server] = []

    def start(*, local: bool, **environ: str) -> Server:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        boxes.append(todoku.App(world.url))
        server = Server(boxes[-1], local=local, entrance=SignInEntrance)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
    for box in boxes:
        box.close()


def test_off_loopback_a_stranger_sees_health_and_nothing_else(world: World, started: Callable[..., Server]) -> None:
    world.publish(1, topic="order.secret")
    server = started(local=False)
    for path in READ:
        for method in ("GET", "HEAD"):
            answer = ask(server.port, f"{method} {path}", host="localhost")
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer ")
            assert b"order.secret" not in answer.body
    assert server.client("publish").get("/metrics").status_code == 403
    for path in HEALTH:
        assert ask(server.port, f"GET {path}", host="anything.example").status == 200


def test_off_loopback_a_token_that_may_read_sees_it(world: World, started: Callable[..., Server]) -> None:
    world.publish(1, topic="order.created")
    server = started(local=False)
    for path in READ:
        assert ask(server.port, f"GET {path}", token=TOKEN, host="ops.example").status == 200, path
    assert server.client("read").get("/api/messages").json()["deliveries"][0]["topic"] == "order.created"


def test_plain_readiness_tells_no_details(started: Callable[..., Server]) -> None:
    server = started(local=False)
    assert ask(server.port, "GET /readyz").json() == {"ready": True, "reasons": []}
    assert set(ask(server.port, "GET /healthz").json()) == {"live", "state"}


def test_metrics_can_be_opened_and_nothing_else_with_them(started: Callable[..., Server]) -> None:
    server = started(local=False, TODOKU_METRICS_OPEN="true")
    assert ask(server.port, "GET /metrics", host="prometheus.example").status == 200
    for path in ("/api/messages", "/readyz?verbose"):
        assert ask(server.port, f"GET {path}").status == 401


def test_on_loopback_this_machine_needs_no_token(started: Callable[..., Server]) -> None:
    server = started(local=True)
    for path in READ:
        for host in HERE:
            assert ask(server.port, f"GET {path}", host=host).status == 200, (path, host)


def test_on_loopback_another_name_and_what_a_proxy_passed_on_are_refused(started: Callable[..., Server]) -> None:
    server = started(local=True)
    for path in READ:
        for host in FOREIGN:
            assert ask(server.port, f"GET {path}", host=host).status == 403, (path, host)
        for header in PASSED_ON:
            assert ask(server.port, f"GET {path}", header).status == 403, (path, header)
        assert ask(server.port, f"GET {path}", "Host: localhost").status == 403, "two of them"
        assert ask(server.port, f"GET {path}", PASSED_ON[0], token="wrong").status == 401
        assert ask(server.port, f"GET {path}", PASSED_ON[0], token=TOKEN, host="ops.example").status == 200


@pytest.mark.parametrize("local", [True, False])
def test_the_dashboard_is_for_those_who_have_signed_in_on_loopback_too(
    world: World, started: Callable[..., Server], local: bool
) -> None:
    world.publish(1, topic="order.secret")
    server = started(local=local)
    for path in PAGES:
        for host in (*HERE, *FOREIGN):
            answer = ask(server.port, f"GET {path}", host=host)
            assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/sign-in"), (path, host)
            assert ask(server.port, f"GET {path}", "Accept: application/json", host=host).status == 401
            assert b"order.secret" not in answer.body
        assert ask(server.port, f"GET {path}", token="wrong").status == 401
        assert ask(server.port, f"GET {path}", *PASSED_ON, token=TOKEN, host="ops.example").status == 200


@pytest.mark.parametrize("local", [True, False])
def test_health_and_the_apis_never_look_at_the_host(started: Callable[..., Server], local: bool) -> None:
    server = started(local=local)
    for host in (*FOREIGN, *HERE):
        for path in HEALTH:
            assert ask(server.port, f"GET {path}", *PASSED_ON, host=host).status == 200
        assert ask(server.port, "GET /v2/queues", *PASSED_ON, host=host, token=TOKEN).status == 200
        assert ask(server.port, "POST /ingest/nobody", *PASSED_ON, host=host, body=b"{}").status == 400
    assert _without_host(server).status == 200


def _without_host(server: Server) -> Answer:
    return send(server.port, "GET /readyz", ["Connection: close"])


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.0.0.5", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_a_loopback_address_is_this_machine_alone(host: str, local: bool) -> None:
    with listen(host, 0) as listening:
        assert is_local(listening) is local


@pytest.mark.parametrize(("host", "seen"), [("127.0.0.1", 200), ("0.0.0.0", 401)])
def test_a_daemon_knows_what_it_is_bound_to(shop: Shop, host: str, seen: int) -> None:
    daemon = shop.start("run", "--app", "shop:box", "--host", host)
    until(lambda: daemon.ask("/readyz")[0] == 200, "ready")
    assert {path: ask(daemon.port, f"GET {path}").status for path in READ} == dict.fromkeys(READ, seen)
    assert {path: ask(daemon.port, f"GET {path}").status for path in PAGES} == dict.fromkeys(PAGES, 303)
    assert daemon.stop() == 0


def test_with_open_the_dashboard_needs_no_sign_in_and_does_not_start_off_loopback(shop: Shop) -> None:
    daemon = shop.start("run", "--app", "shop:box", "--open")
    until(lambda: daemon.ask("/readyz")[0] == 200, "ready")
    assert {path: ask(daemon.port, f"GET {path}").status for path in PAGES} == dict.fromkeys(PAGES, 200)
    assert ask(daemon.port, "GET /", host="evil.example").status == 403
    assert daemon.stop() == 0
    refused = shop.start("run", "--app", "shop:box", "--open", "--host", "0.0.0.0")
    until(lambda: refused.process.poll() is not None, "it to give up")
    assert "--open serves the dashboard without sign-in" in refused.err


def test_what_the_database_says_of_itself_is_not_shown(started: Callable[..., Server], world: World) -> None:
    server = started(local=True)
    world.sql("alter table todoku_delivery rename to todoku_away")
    try:
        found = [ask(server.port, f"GET {path}") for path in ("/", "/api/messages")]
    finally:
        world.sql("alter table todoku_away rename to todoku_delivery")
    for answer in found:
        assert b"todoku_delivery" not in answer.body
        assert b"no such table" not in answer.body


# --------------------------------------------------------------------------------------------- errors

SECRET = "tell-nobody"


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A receiver that says this to everybody, whatever it means."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(60)


@pytest.mark.parametrize(
    "answer", [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", b"HTTP/1.1 500 x\r\n\r\n"]
)
def test_an_error_of_a_delivery_has_no_query_of_its_url(answer: bytes) -> None:
    async def sent(port: int) -> object:
        sender = Sender(Settings(http_loopback=True))
        url = f"http://127.0.0.1:{port}/hook?token={SECRET}"
        post = OutgoingPost(url=url, method="POST", headers={}, body=b"{}", timeout=60.0)
        try:
            return await sender.sent(post)
        finally:
            await sender.aclose()

    with answering(answer) as port:
        outcome = asyncio.run(sent(port))
    assert isinstance(outcome, Retry)
    assert outcome.detail
    assert SECRET not in outcome.detail


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("404 for url 'https://a.example/x?token=s#f'", "404 for url 'https://a.example/x?…'"),
        ("https://a.example/?a=1 and http://b/?b=2 too", "https://a.example/?… and http://b/?… too"),
        ("redis://:pass@cache:6379/0 is away", "redis://cache:6379/0 is away"),
        ("https://user:pass@a.example#frag", "https://a.example?…"),
        ("is it there? https://a.example/x", "is it there? https://a.example/x"),
        ("what?no=url", "what?no=url"),
        ("https://user:p@ss@a.example/x", "https://a.example/x"),
        ("for url: https://a.example/x?q=it's&token=s (404)", "for url: https://a.example/x?… (404)"),
        (
            "HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded with url: /x?token=s (Caused by …)",
            "HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded with url: /x?… (Caused by …)",
        ),
        ("GET '/x?token=s' failed", "GET '/x?…' failed"),
        ("either/or? 1/2 of it", "either/or? 1/2 of it"),
    ],
)
def test_an_error_text_is_stored_without_the_secrets_of_urls(text: str, stored: str) -> None:
    """Whatever raises it: a handler's own client quotes the URL it asked for, too."""
    assert error_text(text) == stored
    assert Abort("REFUSED", text).detail == stored
    assert len(error_text(f"https://a.example/?{'x' * 100_000} behind")) <= 512


LONG_TEXTS = """
import resource
from todoku.core.outcome import error_text
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for text in ("a.b-c+", "a://", "a://b", "(/", "a://b@") * 100:
    assert len(error_text(text * 100_000)) <= 512
"""
"""A pattern that looks again from every character takes minutes of CPU for these, and is killed."""


def test_long_texts_cost_little() -> None:
    subprocess.run([sys.executable, "-c", LONG_TEXTS], check=True)
