"""The daemon that inputs are sent to: a real `todoku run`, watched by health checks and by its memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.running import Daemon, shop_at
from tests.fuzz.inputs import TOKEN
from tests.fuzz.requests import Edge
from tests.ingest.signers import KINDS
from tests.support.raw_http import RawConnection, request
from tests.support.serving import Watching
from todoku.api.ingest import ingest_endpoint
from todoku.api.server import context_of, server_routes
from todoku.app import App
from todoku.web.sign_in import SignInEntrance
from todoku.web.site import web_routes

APP = """
import todoku
from tests.ingest.signers import KINDS

box = todoku.App()
box.ingest("stripe", KINDS[0].verifier(), topic="stripe.{type}")
box.route("**", to="warehouse")
"""
"""An ingest endpoint, and a destination without a worker: what is stored stays as it is."""

SETTINGS = {
    "TODOKU_TOKEN": TOKEN.decode(),
    "TODOKU_API_IDLE_SEC": "0.5",
    "TODOKU_API_RECEIVE_SEC": "1",
    "TODOKU_API_RATE": "1000000",
    "TODOKU_HTTP_LOOPBACK": "1",
    "TODOKU_HTTP_PER_HOST": "64",
}
NO_ROUTES: list[Edge] = [("GET", "/nothing"), ("POST", "//v2/publish/x"), ("OPTIONS", "*"), ("GET", "/../api/v1/x")]

PATIENCE = 30.0
"""Seconds until a connection that has not ended, a delivery that was not settled or a health check counts as a hang."""


class Target:
    """A running daemon, its database, and whether it is well."""

    def __init__(self, daemon: Daemon, box: App, store: str) -> None:
        self.port, self.box, self.store = daemon.port, box, store
        self.edges = edges(box)
        self.healthy = 0
        self.newest = 0
        """The newest delivery that was looked at."""
        self.unhealthy: list[str] = []
        self._daemon = daemon
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def stop_watching(self) -> None:
        self._over.set()
        self._watching.join(PATIENCE)

    def memory(self) -> int:
        """Kilobytes of the daemon and its workers."""
        pids = [self._daemon.process.pid, *(worker["pid"] for worker in self._daemon.workers() if worker["pid"])]
        return sum(_resident(pid) for pid in pids)

    def alive(self) -> bool:
        return self._daemon.process.poll() is None

    def errors(self) -> list[str]:
        """What the daemon logged as an error, but for deliveries that died: something was not foreseen."""
        lines = [line for line in self._daemon.err.splitlines() if not line.startswith('{"event":"settled"')]
        return [line for line in lines if '"level":"error"' in line or "Traceback" in line]

    def signed(self, body: bytes) -> bytes:
        """The signature of an event, as of now."""
        return KINDS[0].arrived(body).headers["stripe-signature"].encode()

    def _watch(self) -> None:
        """Ask for health all the time: it must be answered whatever else comes."""
        while not self._over.wait(0.05):
            try:
                with RawConnection(self.port) as connection:
                    connection.socket.settimeout(PATIENCE)
                    connection.send(request("GET", "/healthz", {"Connection": "close"}))
                    answer = connection.answer()
            except OSError as error:
                self.unhealthy.append(f"{type(error).__name__}: {error}")
            else:
                self.healthy += answer.status == 200
                if answer.status != 200:
                    self.unhealthy.append(f"{answer.status}: {answer.body[:200]!r}")


def edges(box: App) -> list[Edge]:
    """Every route of the daemon, from its own tables, and a few paths that are none."""
    context = context_of(box)
    routes = [
        *server_routes(context, ingest_endpoint(context), Watching(box)),
        *web_routes(context, SignInEntrance(context)),
    ]
    found = [(method, route.path) for route in routes for method in sorted(route.methods or ())]
    return [*dict.fromkeys(found), *NO_ROUTES]


@contextmanager
def target(home: Path, url: str, store: str, **settings: str) -> Iterator[Target]:
    """A daemon on this database."""
    with shop_at(home, url) as shop:
        shop.box.migrate()
        (home / "fuzzed.py").write_text(APP)
        root = str(Path(__file__).resolve().parents[2])
        daemon = shop.start("run", "--app", "fuzzed:box", "--workers", "1", PYTHONPATH=root, **SETTINGS, **settings)
        daemon.until_ready()
        found = Target(daemon, shop.box, store)
        try:
            yield found
        finally:
            found.stop_watching()


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
