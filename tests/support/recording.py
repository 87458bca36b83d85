"""Servers that note what they are sent: a webhook, Sentry's ingest, a post office. Real sockets on free ports."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import sentry_sdk
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session


class Posted:
    """One request."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Recorder:
    """An HTTP server; `statuses` are its next answers, then it is 200."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.statuses: list[int] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                recorder.posted.append(Posted(self.path, headers, body))
                self.send_response(recorder.statuses.pop(0) if recorder.statuses else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None:
                """Tests have their own words."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SentryRecorder(Recorder):
    """Where a DSN leads: envelopes of events and transactions."""

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.port}/7"

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Every item of that kind that arrived: `event`, `transaction`."""
        return [item for posted in self.posted for item in _items(posted, kind)]


def _items(posted: Posted, kind: str) -> Iterator[dict[str, Any]]:
    body = gzip.decompress(posted.body) if posted.headers.get("content-encoding") == "gzip" else posted.body
    lines = body.split(b"\n")[1:]  # the first is about the envelope
    for head, content in zip(lines[::2], lines[1::2], strict=False):
        if head.strip() and json.loads(head).get("type") == kind:
            yield json.loads(content)


class _AnyPort(Controller):
    """A controller whose port the kernel chose: known once it listens."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


class PostOffice:
    """An SMTP server; `refuses`: what it says instead of taking a mail."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.refuses: str | None = None
        self._controller = _AnyPort(self, hostname="127.0.0.1", port=0)
        self._controller.start()
        self.url = f"smtp://127.0.0.1:{self._controller.port}"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        if self.refuses is not None:
            return self.refuses
        assert isinstance(envelope.content, bytes)
        self.mails.append(BytesParser(policy=default).parsebytes(envelope.content))
        return "250 OK"

    def close(self) -> None:
        self._controller.stop()


@contextmanager
def recorder() -> Iterator[Recorder]:
    """A webhook's receiver."""
    server = Recorder()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def sentry_recorder() -> Iterator[SentryRecorder]:
    """A Sentry."""
    server = SentryRecorder()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def sentry_here() -> Iterator[SentryRecorder]:
    """The SDK of this process, initialised as an application does it, and ended afterwards."""
    with sentry_recorder() as server:
        sentry_sdk.init(server.dsn, traces_sample_rate=1.0, default_integrations=False)
        try:
            yield server
        finally:
            sentry_sdk.get_client().close(timeout=2)
            sentry_sdk.get_global_scope().set_client(None)


@contextmanager
def post_office() -> Iterator[PostOffice]:
    """A mail server."""
    server = PostOffice()
    try:
        yield server
    finally:
        server.close()
