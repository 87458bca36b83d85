"""A receiver that does as it is told by the path, and remembers what came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.daemon.running import until


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes


@dataclass
class Receiver:
    """`/status/404` answers 404 with the text `404 Not Found`; `/hold/…` answers once it is let go; all else is 200."""

    url: str
    received: list[Received] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def at(self, path: str) -> list[Received]:
        """What came to a path, its query aside."""
        return [each for each in self.received if each.path.split("?")[0] == path]

    def one(self, path: str) -> Received:
        """The first that comes to a path."""
        return until(lambda: self.at(path), f"something at {path}")[0]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever sent it has gone."""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.received.append(Received(self.command, self.path, headers, body))
            path = self.path.split("?")[0]
            if path.startswith("/hold/"):
                found.go.wait(60)
            status = int(path.split("/")[2]) if path.startswith("/status/") else 200
            text = f"{status} {responses.get(status, '')}".strip()
            self.send_response(status)
            self.send_header("X-Answer", "yes")
            if status == 489:
                self.send_header("Upstash-NonRetryable-Error", "true")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *_: object) -> None:
            """Nothing."""

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
