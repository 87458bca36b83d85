"""The demonstration of `todoku up`: publishes messages of all kinds, one of which fails on purpose.

It shows jobs that succeed, one that is retried, a dead letter with others of its key behind it, a schedule, and a
webhook to a receiver that runs here.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Final

import msgspec

from todoku.app import App
from todoku.core.errors import TodokuError
from todoku.daemon.demo_shop import WEBHOOK_ORIGIN

LIVELY: Final = 60
"""The first messages are published at one a second, later ones more slowly."""

LAST: Final = 120
SCHEDULE: Final = "demo.report"
_SECOND: Final = 1.0
_QUIET: Final = 10.0
_BY: Final = "demonstration"
_WHY: Final = "it shows a schedule"


class DemoMessage(msgspec.Struct, frozen=True):
    """A message of the demonstration."""

    topic: str
    payload: dict[str, object]
    key: str | None = None
    at_once: bool = False


class DemoPublisher:
    """Publishes `LAST` messages: every second at first, then more slowly. Its schedule is there while it runs."""

    def __init__(self, box: App) -> None:
        self._box = box
        self._stopped = threading.Event()

    def run(self) -> None:
        """Publishes them all. It takes minutes: call it in a daemon thread."""
        with suppress(TodokuError):  # stopping, or the database is gone: the guardrail reports it
            self._box.schedules.add(SCHEDULE, "demo.report", {"of": "orders"}, every=15, by=_BY, why=_WHY)
        for number, message in zip(range(LAST), _messages(), strict=False):
            with suppress(TodokuError):
                self._box.publish(message.topic, message.payload, tx=None, key=message.key)
            if not message.at_once and self._stopped.wait(_SECOND if number < LIVELY else _QUIET):
                return

    def stop(self) -> None:
        """Stops publishing, and removes the schedule: another App on this database does not know what it publishes."""
        self._stopped.set()
        with suppress(TodokuError):
            self._box.schedules.remove(SCHEDULE, by=_BY, why=_WHY)


def _messages() -> Iterator[DemoMessage]:
    """The first ones at once, so that the page is not empty."""
    customer = f"customer-{secrets.randbelow(9000) + 1000}"  # another one at every start, which waits for no other
    yield DemoMessage("demo.greeting", {"name": "newcomer"}, at_once=True)
    for number in (1, 2, 3):
        yield DemoMessage("demo.refund", {"refund": number, "amount": 42}, key=customer, at_once=True)
    yield DemoMessage("demo.order.paid", {"order": 1, "amount": 42}, at_once=True)
    for number in count(2):
        yield DemoMessage("demo.order.created", {"order": number, "amount": 42})
        yield DemoMessage("demo.greeting", {"name": f"visitor {number}"})
        yield DemoMessage("demo.order.paid", {"order": number, "amount": 42})


class DemoReceiver:
    """A receiver of webhooks on this machine, which accepts everything."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Serves, and lets the workers that start from now on send the demonstration's webhooks here.

        Only requests to the demonstration's own origin go to this machine; others to loopback stay refused.
        """
        given = os.environ.get("TODOKU_HTTP_REWRITE")
        os.environ["TODOKU_HTTP_REWRITE"] = ",".join(filter(None, (given, f"{WEBHOOK_ORIGIN}={self.url}")))
        threading.Thread(target=self._server.serve_forever, name="todoku-demo-receiver", daemon=True).start()

    def stop(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_POST(self) -> None:
        """Reads the body and accepts it."""
        length = int(self.headers.get("content-length") or 0)
        self.rfile.read(min(length, 1 << 20))
        body = b'{"accepted": true}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Writes nothing: the worker logs each delivery."""
