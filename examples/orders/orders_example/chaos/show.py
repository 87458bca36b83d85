"""A run of the show: 64 identical orders at once, then orders without end while workers are killed."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import text

from orders_example.broker.server import Noted, read_log
from orders_example.chaos.verdict import Verdict, judged
from orders_example.database import Database
from orders_example.running import Running, running, start_all

AT_ONCE: Final = 64
PATIENCE: Final = 300.0
OPEN: Final = 20
"""Nobody posts more while so many orders wait: they would only have to be waited for at the end."""

OLD: Final = 2.2
"""A worker process that dies younger is taken for one that cannot start, and its successor has to wait."""

_ENVIRON: Final = {
    "ORDERS_PER_MINUTE": "100000",
    "BROKER_LATENCY_MS": "40",
    "BROKER_TIMEOUT_MS": "30000",
    "OUTBOX_BACKOFF_SEC": "0.1",
    # An order whose workers die under it three times is given up for killing them. Here it is us.
    "TODOKU_MAX_LOST": "1000",
    "TODOKU_POLL_INTERVAL_SEC": "0.05",
}


def shown(home: Path, url: str, *, kills: int, workers: int) -> Verdict:
    """Post, kill, wait until nothing is left to do, compare."""
    port, broker_port, worker_port, log = free_port(), free_port(), free_port(), home / "broker.jsonl"
    broker = f"http://127.0.0.1:{broker_port}"
    environ = _ENVIRON | {
        "TODOKU_DATABASE": url, "PORT": str(port), "BROKER_PORT": str(broker_port), "BROKER_LOG": str(log),
        "BROKER_URL": broker, "BROKER_TOKEN": secrets.token_hex(8), "TODOKU_PORT": str(worker_port),
    }  # fmt: skip
    database = Database(url)
    try:
        with running(home, environ, logs=True) as processes:
            worker = f"http://127.0.0.1:{worker_port}"
            start_all(processes, f"http://127.0.0.1:{port}", broker, worker, workers=workers)
            at_once, hunter = crowded(port), Hunter(log, kills)
            with closing(Client(port)) as client:
                other = client.post(order("at-once-1", qty=7))
                posted = hunted(processes, client, hunter)
            until(lambda: nothing_open(database), "the last order")
        with database.begin() as tx:
            ledger = tx.execute(text("select idempotency_key, status, http_status, cast(response_payload_json as text)"
                                     " from idempo_ledger")).all()  # fmt: skip
    finally:
        database.close()
    return judged({"at-once-1", *posted}, at_once, other, read_log(log), hunter.killed, [tuple(row) for row in ledger])


class Hunter:
    """Kills whoever has just had an order executed and does not know it yet."""

    def __init__(self, log: Path, kills: int) -> None:
        self._log = log
        self._kills = kills
        self._read = 0
        self._seen: dict[int, float] = {}
        self.executed = 0
        self.killed: list[int] = []

    @property
    def done(self) -> bool:
        """Whether so many are dead."""
        return len(self.killed) >= self._kills

    def look(self) -> None:
        """Read on in the broker's log, and kill the last one in it, if it is old enough."""
        lines = self._log.read_bytes()[self._read :].split(b"\n") if self._log.exists() else [b""]
        self._read += sum(len(line) + 1 for line in lines[:-1])
        noted = [msgspec.json.decode(line, type=Noted) for line in lines[:-1]]
        self.executed += sum(each.event == "order" for each in noted)
        workers = [each.worker for each in noted]
        for worker in workers:
            self._seen.setdefault(worker, time.monotonic())
        last = workers[-1] if workers else None
        if last is None or last in self.killed or self.done or time.monotonic() - self._seen[last] < OLD:
            return
        os.kill(last, signal.SIGKILL)
        self.killed.append(last)


def hunted(processes: Running, client: Client, hunter: Hunter) -> list[str]:
    """Post an order, and the same again, until the hunter is done. Returns the keys."""
    keys: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while not hunter.done:
        if time.monotonic() > deadline or not processes.alive:
            raise RuntimeError(f"{len(hunter.killed)} workers were killed, and somebody has ended")
        if len(keys) - hunter.executed > OPEN:
            time.sleep(0.002)
            hunter.look()
            continue
        keys.append(f"hunted-{len(keys):06}")
        for expected in (201, 200):
            if (status := client.post(order(keys[-1]))) != expected:
                raise RuntimeError(f"{keys[-1]} was answered with {status} instead of {expected}")
            hunter.look()
    return keys


def crowded(port: int) -> Counter[int]:
    """The same order from 64 clients at the same moment: how often each status was answered."""
    ready = threading.Barrier(AT_ONCE)

    def post(_: int) -> int:
        with closing(Client(port)) as client:
            ready.wait(PATIENCE)
            return client.post(order("at-once-1"))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return Counter(pool.map(post, range(AT_ONCE)))


class Client:
    """Somebody who orders."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._connection.connect()

    def post(self, body: dict[str, Any]) -> int:
        """The status of the answer."""
        try:
            return self._post(body)
        except ConnectionError:  # an idle connection was hung up; the key makes asking again safe
            self._connection.close()
            return self._post(body)

    def _post(self, body: dict[str, Any]) -> int:
        headers = {"content-type": "application/json", "idempotency-key": body["idempotency_key"]}
        self._connection.request("POST", "/do/order", json.dumps(body), headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def order(key: str, qty: int = 3) -> dict[str, Any]:
    """An order by its key."""
    return {
        "idempotency_key": key, "order_id": f"o-{key}", "instrument": "AAPL", "side": "BUY", "qty": qty,
        "price": 187.5, "requested_at": "2026-11-16T09:00:00Z", "trace_id": "chaos",
    }  # fmt: skip


def nothing_open(database: Database) -> bool:
    """Whether every order has come to its end."""
    with database.begin() as tx:
        return tx.execute(text("select count(*) from outbox_orders where status <> 'succeeded'")).scalar() == 0


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
