"""Callers and receivers in the runtime of Cloudflare Workers (S4-8, S4-21): the Workers of docs/qstash.md, as shown."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx

from tests.api.qstash.conftest import CURRENT, NEXT, TOKEN, Server
from tests.daemon.running import until
from tests.support.nodejs import cloudflare_worker
from tests.support.ports import free_port

PAGE = (Path(__file__).parents[3] / "docs" / "qstash.md").read_text("utf-8")


class Worker:
    """A Worker that runs: where it is asked, and what it logs."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8")

    def listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=1):
                return True
        except OSError:
            return False


@contextmanager
def running(block: str, server: Server, home: Path, hook: str | None = None, **more: str) -> Iterator[Worker]:
    """The Worker of this block of the page; it publishes to itself, or to `hook`."""
    found = re.search(rf"^```js {block}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    known = {
        "QSTASH_URL": server.url, "QSTASH_TOKEN": TOKEN, "HOOK_URL": hook or f"{url}/hooks/order",
        "QSTASH_CURRENT_SIGNING_KEY": CURRENT, "QSTASH_NEXT_SIGNING_KEY": NEXT,
    }  # fmt: skip
    with cloudflare_worker(found[1], home, port, **(known | more)) as log:
        worker = Worker(url, log)
        until(worker.listens, "a Worker")
        yield worker


def test_a_worker_publishes_and_receives_with_the_official_client(server: Server, tmp_path: Path) -> None:
    """S4-8, S4-21, S4-22: published once, signed, acknowledged by 204."""
    order = {"id": uuid4().hex, "amount": 42}
    with running("worker", server, tmp_path) as worker:
        first, again = (httpx.post(f"{worker.url}/orders", json=order) for _ in range(2))
        assert (first.status_code, again.status_code) == (202, 202), worker.said
        id = first.json()["messageId"]
        assert again.json()["messageId"] == id, "the same order is the same message"
        until(lambda: f"arrived {json.dumps(order, separators=(',', ':'))}" in worker.said, "it arrives")
        events = {"messageId": id, "state": "DELIVERED"}
        until(lambda: server.raw.get("/v2/events", params=events).json()["events"], "it is delivered")
        forged = httpx.post(f"{worker.url}/hooks/order", json=order, headers={"Upstash-Signature": "x.y.z"})
        assert forged.status_code == 401
        assert worker.said.count("arrived") == 1


def test_a_worker_publishes_with_fetch_alone(server: Server, path: str, tmp_path: Path) -> None:
    """S4-21."""
    with running("fetch", server, tmp_path, server.to(path)) as worker:
        answer = httpx.post(worker.url, json={"amount": 42})
        assert answer.status_code == 202, worker.said
        assert answer.json()["messageId"]
        assert json.loads(server.receiver.one(path).body) == {"amount": 42}


def test_a_worker_whose_token_is_refused_tells_its_caller(server: Server, path: str, tmp_path: Path) -> None:
    with running("fetch", server, tmp_path, server.to(path), QSTASH_TOKEN="another-token-0123456789") as worker:
        assert httpx.post(worker.url, json={"amount": 42}).status_code == 503
