"""`python -m capture_example.receiver`: somebody else's server, which takes webhooks on PORT and notes them."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from capture_example.arrivals import note
from capture_example.settings import PORT, read_port


class Hooks(BaseHTTPRequestHandler):
    """Answers 204 once a change is noted."""

    protocol_version = "HTTP/1.1"
    place = Path()

    def do_POST(self) -> None:
        """A webhook."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        note(self.place / "webhook.jsonl", self.headers.get("ce-id") or "", json.loads(body))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        """Whether it is there."""
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: its file is its log."""


def main() -> int:
    """Serves until it is stopped."""
    Hooks.place = Path(os.environ.get("ARRIVALS") or ".")
    with ThreadingHTTPServer(("127.0.0.1", read_port(os.environ, "PORT", PORT)), Hooks) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
