"""A queue elsewhere, in a process of its own that can be killed: as much of the wire as a client needs.

What it has accepted is in a SQLite file, written before the answer; so a test sees what a queue would have sent, after
whatever happened to the process. `python -m tests.client.queue_server PORT FILE`.
"""

from __future__ import annotations

import json
import select
import sqlite3
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

TOKEN = "a-token"


class Accepted:
    """The messages, in the order they were accepted; a deduplication id is accepted once."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("pragma synchronous = full")
        self._db.execute(
            "create table if not exists accepted (number integer primary key, id text unique, dedup text unique,"
            " path text, headers text, body blob)"
        )

    def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[str, bool]:
        """(message id, whether it was there already)."""
        dedup = headers.get("upstash-deduplication-id") or str(uuid4())
        with self._lock:
            added = self._db.execute(
                "insert into accepted (id, dedup, path, headers, body) values (?, ?, ?, ?, ?) on conflict do nothing",
                (f"msg_{uuid4()}", dedup, path, json.dumps(headers), body),
            )
            ((id,),) = self._db.execute("select id from accepted where dedup = ?", (dedup,)).fetchall()
        return id, added.rowcount == 0


class Handler(BaseHTTPRequestHandler):
    """Answers as QStash does. `answering` (a file) can tell it otherwise: a status,
    `slow`, `drip`, or `mute`: it accepts, and says nothing."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one write
    accepted: Accepted
    answering: Path
    dead: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self._told_otherwise():
            return
        path, headers = unquote(self.path), {name.lower(): value for name, value in self.headers.items()}
        headers["x-came-from"] = str(self.client_address[1])
        if headers.get("authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "unauthorized"})
        elif path.startswith("/v2/dlq/retry/"):
            self._retry(path.rpartition("/")[2])
        else:
            id, duplicate = self.accepted.take(path, headers, body)
            if self._told() == "mute":
                self._until_gone()
            self._answer(202 if duplicate else 200, {"messageId": id} | ({"deduplicated": True} if duplicate else {}))

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/v2/keys":
            self._answer(200, {"current": "c", "next": "n"})
        elif path == "/v2/dlq":
            query = parse_qs(urlsplit(self.path).query)
            letters, at = self._letters(), int(query.get("cursor", ["0"])[0])
            page = letters[at : at + int(query["count"][0])]
            more = {"cursor": str(at + len(page))} if at + len(page) < len(letters) else {}
            self._answer(200, {"messages": page, **more})
        else:
            id = path.rpartition("/")[2]
            found = [one for one in self._letters() if id in (one["dlqId"], one["messageId"])]
            self._answer(200 if found else 404, found[0] if found else {"error": f"no {id}"})

    def do_DELETE(self) -> None:
        id = self.path.rpartition("/")[2]
        letters = self._letters()
        left = [one for one in letters if id not in (one["dlqId"], one["messageId"])]
        self.dead.write_text(json.dumps(left))
        self._answer(200 if len(left) < len(letters) else 404, {"error": "gone"})

    def _retry(self, id: str) -> None:
        letters = self._letters()
        found = [one for one in letters if one["dlqId"] == id]
        self.dead.write_text(json.dumps([one for one in letters if one["dlqId"] != id]))
        self._answer(201 if found else 404, {"messageId": "msg_again"} if found else {"error": "gone"})

    def _told(self) -> str:
        return self.answering.read_text().strip() if self.answering.exists() else ""

    def _until_gone(self) -> None:
        """Say nothing until the client has hung up; one that waits for very long is let go."""
        select.select([self.connection], [], [], 60)

    def _letters(self) -> list[dict[str, Any]]:
        return list(json.loads(self.dead.read_text())) if self.dead.exists() else []

    def _told_otherwise(self) -> bool:
        told = self._told()
        if told == "mute":
            return False
        if told == "slow":
            self._until_gone()
        elif told == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            for _ in range(50):
                self.wfile.write(b"a")
                self.wfile.flush()
                time.sleep(0.1)
        elif told:
            self._answer(int(told), {"error": f"told to answer {told}"})
        return bool(told)

    def _answer(self, status: int, said: object) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quietly."""


def main() -> None:
    port, file = int(sys.argv[1]), Path(sys.argv[2])
    Handler.accepted = Accepted(file)
    Handler.answering, Handler.dead = file.with_suffix(".answering"), file.with_suffix(".dead")
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer.daemon_threads = True
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
