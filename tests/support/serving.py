"""A real HTTP server over an App in this process: the daemon's own, but for its workers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import httpx

from todoku.api.auth import GuardedRoute
from todoku.api.condition import Check, Condition
from todoku.api.request_context import RequestContext
from todoku.api.server import server_app
from todoku.app import App
from todoku.core.ingest import Verifier
from todoku.core.scope import Scope
from todoku.daemon.health_view import correlations
from todoku.daemon.http_thread import HttpThread, listen, listening_url
from todoku.engine.http import api_tokens
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter
from todoku.store.statistics import Counts
from todoku.web.entrance import OpenEntrance
from todoku.web.site import web_routes
from todoku.web.viewer import Entrance

SOMEBODY = Signed("somebody", "a test")

PLAIN = ssl.create_default_context()
"""For `verify=` of clients that speak plain HTTP: httpx loads every certificate of the machine for each new client."""


class Watching:
    """What the health endpoints show: that all is well."""

    title = "a test"

    def __init__(self, box: App) -> None:
        self._box = box

    def condition(self) -> Condition:
        return Condition(live=True, state="running", checks=(Check("database", True),))

    def metrics(self) -> bytes:
        return b"# nothing\n"

    def counts(self) -> Counts:
        return self._box.store.statistics.counts()

    def newest(self, limit: int) -> tuple[Delivery, ...]:
        return self._box.store.deliveries.find(Filter(), limit=limit).items

    def correlations(self, deliveries: Sequence[Delivery]) -> dict[UUID, str]:
        return correlations(self._box.store, deliveries)


def open_entrance(context: RequestContext) -> Entrance:
    """The dashboard without sign-in."""
    return OpenEntrance(context.gate)


class Server:
    """A running server, and clients with tokens of any scope. `local`: it takes itself for this machine's alone."""

    def __init__(
        self, box: App, *, local: bool = False, entrance: Callable[[RequestContext], Entrance] = open_entrance
    ) -> None:
        self.box = box
        self.listening = listen("127.0.0.1", 0)
        self.url = listening_url(self.listening)
        self.port = int(self.listening.getsockname()[1])

        def routes(context: RequestContext) -> list[GuardedRoute]:
            return web_routes(context, entrance(context))

        self.http = HttpThread(lambda: server_app(box, Watching(box), local=local, more=routes), self.listening)
        self.http.start()
        self._clients: dict[str, httpx.Client] = {}

    def token(self, *scopes: Scope, name: str = "ada", lasts: float | None = None) -> str:
        """A new token."""
        return api_tokens.create(self.box.store, SOMEBODY, name=name, scopes=scopes, lasts=lasts)[1]

    def client(self, *scopes: Scope) -> httpx.Client:
        """A client with a token of these scopes; with none, without a token."""
        name = " ".join(scopes)
        if name not in self._clients:
            headers = {"authorization": f"Bearer {self.token(*scopes)}"} if scopes else {}
            self._clients[name] = httpx.Client(
                base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=PLAIN
            )
        return self._clients[name]

    def ask(self, method: str, path: str, *, scope: Scope = "admin", status: int = 200, **given: Any) -> Any:
        """The JSON of an answer with this status, below /api/v1."""
        answer = self.client(scope).request(method, f"/api/v1{path}", **given)
        assert answer.status_code == status, answer.text
        return answer.json()

    def raw(self, sent: bytes, *, seconds: float = 60.0) -> bytes:
        """What is answered to these bytes until the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(sent)
            return received(connection)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self.http.stop()


def received(connection: socket.socket) -> bytes:
    """Everything that comes until the other side hangs up."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


@contextmanager
def serving_events(box: App, verifier: Verifier) -> Iterator[Server]:
    """A server that takes events at `/ingest/stripe`."""
    box.ingest("stripe", verifier, topic="stripe.{type}")
    box.route("**", to="warehouse")
    with serving(box) as server:
        yield server


@contextmanager
def serving(
    box: App, *, local: bool = False, entrance: Callable[[RequestContext], Entrance] = open_entrance
) -> Iterator[Server]:
    server = Server(box, local=local, entrance=entrance)
    try:
        yield server
    finally:
        server.close()
