"""The payments example at work: an application on each database, and its API over ASGI."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from payments_example.api import make_api
from payments_example.application import Payments
from payments_example.failed import Failed
from payments_example.settings import Settings
from payments_example.show.stripe_side import signed

from tests.daemon.running import PATIENCE, until
from tests.examples.users_at_work import sql

SECRET = "whsec_tests"
NOW = 1_800_000_000
ADMIN = ("ana", "let-me-in")


class AtWork:
    """An application with its API. Nothing runs by itself: `drain` does."""

    def __init__(self, payments: Payments, client: httpx.Client, failed: Failed) -> None:
        self.payments = payments
        self.box = payments.box
        self.client = client
        self.failed = failed
        self._url = payments.settings.database

    def post(self, event: dict[str, Any], secret: str = SECRET, **more: str) -> httpx.Response:
        """An event, as Stripe posts it."""
        body, headers = signed(event, secret)
        return self.client.post("/ingest/stripe", content=body, headers=headers | more)

    def payment(self, intent: str) -> dict[str, Any] | None:
        found = self.client.get(f"/payments/{intent}")
        return found.json() if found.status_code == 200 else None

    def act(self, path: str, page: str, *, why: str, origin: str | None = None) -> httpx.Response:
        """Sends a form of a page of the console, as a browser does."""
        form = {"why": why, "csrf": page.split('name="csrf" value="')[1].split('"', maxsplit=1)[0]}
        headers = {"Origin": origin or str(self.client.base_url).rstrip("/")}
        return self.client.post(path, auth=ADMIN, data=form, headers=headers)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return sql(self._url, statement, *values)

    def mails(self) -> list[str]:
        """Their subjects, sorted."""
        letters = self.payments.settings.outbox.glob("*.eml")
        return sorted(
            line.removeprefix("Subject: ")
            for letter in letters
            for line in letter.read_text().splitlines()
            if line.startswith("Subject: ")
        )


@contextmanager
def served(app: Any, at: socket.socket | None = None) -> Iterator[str]:
    """An ASGI application on a port of its own; its address."""
    with at or socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        until(lambda: server.started, "the API to be served")
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextmanager
def payments_at(url: str, home: Path, *, listening: socket.socket | None = None, **more: Any) -> Iterator[AtWork]:
    given = {"stripe_secrets": (SECRET,), "admin_token": ADMIN[1], "outbox": home / "outbox", "first_wait": 0.01}
    payments = Payments(Settings(database=url, **(given | more)))
    try:
        payments.prepare()
        with (
            payments.queue() as queue,
            served(make_api(payments, queue), listening) as address,
            httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client,
        ):
            yield AtWork(payments, client, Failed(payments, queue))
    finally:
        payments.close()
