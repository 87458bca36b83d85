"""A proxy in front of a search server: it refuses large requests, or answers as Elasticsearch does."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Proxy:
    """Passes requests on. `_bulk` with more than `most_documents` is answered by 429; None: all are passed on."""

    def __init__(self, server: str, *, most_documents: int | None = None, elastic: bool = False) -> None:
        self.server = server
        self.most_documents = most_documents
        self.elastic = elastic
        self.sizes: list[int] = []
        self.refused = 0
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def is_refused(self, path: str, body: bytes) -> bool:
        if not path.startswith("/_bulk"):
            return False
        self.sizes.append(body.count(b"\n") // 2)
        if self.most_documents is None or self.sizes[-1] <= self.most_documents:
            return False
        self.refused += 1
        return True


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.owner.is_refused(self.path, body):
            error = {"error": {"type": "rejected_execution_exception", "reason": "queue is full"}, "status": 429}
            self._answer(429, json.dumps(error).encode())
            return
        kind = "application/x-ndjson" if "ndjson" in self.headers.get("content-type", "") else "application/json"
        request = urllib.request.Request(
            f"{self.owner.server}{self.path}", body or None, {"content-type": kind}, method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self._answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.read())

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass  # noqa: N815 - the names of http.server

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if self.owner.elastic:
            self.send_header("x-elastic-product", "Elasticsearch")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
