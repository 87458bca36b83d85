"""Ingest in a real daemon: killed at the instant of a 204 it has every event, and hostile senders hold up nobody."""

from __future__ import annotations

import gzip
import http.client
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.daemon.running import ARMED, Daemon, until
from tests.ingest.signers import KINDS, SECRET, event
from tests.support.world import World

STRIPE = KINDS[0]
HOOKS = f"""
import todoku
box = todoku.App()
box.ingest("stripe", todoku.stripe(secrets=["{SECRET}"]), topic="stripe.{{type}}")
box.route("**", to="warehouse")  # another process serves it
"""
Start = Callable[..., Daemon]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Start]:
    """Start a daemon that takes in what Stripe sends."""
    (tmp_path / "hooks.py").write_text(HOOKS)
    daemons: list[Daemon] = []

    def started(module: str = "todoku", **environ: str) -> Daemon:
        arguments = ("run", "--app", "hooks:box", "--workers", "1")
        daemon = Daemon(arguments, tmp_path, {"TODOKU_DATABASE": world.url, **environ}, module=module)
        daemons.append(daemon)
        daemon.until_ready()
        return daemon

    yield started
    for daemon in daemons:
        daemon.close()


def post(connection: http.client.HTTPConnection, id: str) -> tuple[int, str | None]:
    """Post an event; (status, message id)."""
    body = event(id=id)
    connection.request("POST", "/ingest/stripe", body, dict(STRIPE.arrived(body).headers))
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers["Upstash-Message-Id"]


def connected(daemon: Daemon) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60))


class Senders:
    """A source with many connections. It counts its 204s, and pulls the plug at one of them."""

    def __init__(self, daemon: Daemon, *, fatal: int, number: int = 8) -> None:
        self._daemon = daemon
        self._fatal = fatal
        self._lock = threading.Lock()
        self.acknowledged: dict[str, str] = {}
        self._threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(number)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def _send(self, place: int) -> None:
        with suppress(OSError, http.client.HTTPException), connected(self._daemon) as connection:  # until it is dead
            for n in range(10_000):
                id = f"evt_{self._daemon.port}_{place}_{n}"
                status, message = post(connection, id)
                assert status == 204
                assert message is not None
                with self._lock:
                    self.acknowledged[id] = message
                    if len(self.acknowledged) == self._fatal:
                        os.kill(self._daemon.process.pid, signal.SIGKILL)


def test_a_daemon_killed_at_the_instant_of_a_204_has_every_event(start: Start, world: World) -> None:
    """kill -9 at the first, and at one among many: what was acknowledged is there (I1, S4-9)."""
    for fatal in (1, 100):
        senders = Senders(daemon := start(), fatal=fatal)
        senders.run()
        assert daemon.exit_code() == -signal.SIGKILL
        assert len(senders.acknowledged) >= fatal
        found = {str(id) for (id,) in world.sql("select id from todoku_message")}
        assert not set(senders.acknowledged.values()) - found
        daemon.close()


def test_a_daemon_killed_at_a_commit_acknowledges_nothing_it_has_not(start: Start, world: World) -> None:
    """Before it and after it: no answer. Sent again to the next daemon, each event is there once (S4-7)."""
    for side, number in (("before", 0), ("after", 1)):
        daemon = start(ARMED, TODOKU_FAILPOINTS=f"publish.{side}_commit=kill")
        with connected(daemon) as dying, pytest.raises((OSError, http.client.HTTPException)):
            post(dying, "evt_1")
        assert daemon.exit_code() == -signal.SIGKILL
        assert len(world.deliveries()) == number
        daemon.close()
    with connected(start()) as living:
        status, message = post(living, "evt_1")
    assert status == 204
    assert [str(found.message_id) for found in world.deliveries()] == [message]


# ------------------------------------------------------------------------------------------------ hostile senders


@contextmanager
def raw(daemon: Daemon, head: str, body: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=60) as connection:
        connection.sendall(f"POST /ingest/stripe HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
        yield connection


def status_of(connection: socket.socket) -> int:
    with connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


@pytest.mark.parametrize("backend", ["sqlite"])  # what databases have no part in
def test_hostile_bodies_are_refused_and_hold_up_nobody(start: Start, world: World) -> None:
    """Huge ones before they are read, packed ones unpacked by nobody, slow ones beside all others."""
    daemon = start()
    with raw(daemon, "Content-Length: 999999999999\r\n") as huge:
        assert status_of(huge) == 413
    with raw(daemon, "Transfer-Encoding: chunked\r\n") as chunked:
        with suppress(OSError):
            for _ in range(64):
                chunked.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert status_of(chunked) == 413
    bomb = gzip.compress(b"0" * (8 << 20))
    with raw(daemon, f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n", bomb) as packed:
        assert status_of(packed) == 415
    with ExitStack() as slow:
        for _ in range(60):
            slow.enter_context(raw(daemon, "Content-Length: 1000\r\n", b'{"id":'))
        with connected(daemon) as good:
            assert post(good, "evt_1")[0] == 204
        assert daemon.ask("/healthz")[0] == 200
    assert len(world.deliveries()) == 1
    for line in (
        'ingest_requests_total{source="stripe",status="204"} 1.0',
        'ingest_requests_total{source="stripe",status="413"} 2.0',
        "ingest_seconds_bucket",
    ):
        until(lambda: line in str(daemon.ask("/metrics")[1]), line)  # noqa: B023 - runs at once
