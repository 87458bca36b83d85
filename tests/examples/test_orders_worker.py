"""MEND-7: examples/orders as its README starts it: W-102, W-103, the worker's metrics, SIGTERM, four at once.

Real processes: the broker server, the API and `todoku run`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from orders_example.broker import Execution
from orders_example.broker.server import read_log
from orders_example.chaos.show import Client, order
from orders_example.order import Order
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.daemon.running import KEPT, PATIENCE, until
from tests.examples.orders_at_work import KEY, an_order, orders_at, outbox, rows
from tests.support.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders"
README = (EXAMPLE / "README.md").read_text("utf-8")
TOKEN = "sesame"


@contextmanager
def process(home: Path, *module: str, **environ: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m …` with the example on its path; it logs to home/log. Killed at the end, if it still runs."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    given = {name: str(value) for name, value in environ.items()}
    with (home / "log").open("ab") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", *module], cwd=home, env=kept | {"PYTHONPATH": str(EXAMPLE)} | given,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def stopped(running: subprocess.Popen[bytes]) -> int:
    """Its exit code after SIGTERM."""
    running.send_signal(signal.SIGTERM)
    return running.wait(PATIENCE)


class Example:
    """`python -m orders_example` on a database, with ports of its own."""

    def __init__(self, home: Path, url: str, **environ: Any) -> None:
        self.home, self.url = home, url
        self.port, self.worker_port = free_port(), free_port()
        self.environ = environ | {
            "DATABASE_URL": url, "PORT": self.port, "BROKER_PORT": free_port(), "TODOKU_PORT": self.worker_port,
            "TODOKU_PROCESSES": 1,
        }  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Started, and greeting."""
        with process(self.home, "orders_example", **self.environ) as example:
            log = self.home / "log"
            until(lambda: b"Ctrl-C stops all" in log.read_bytes() or example.poll() is not None, "its greeting")
            assert example.poll() is None, log.read_text()
            yield example

    def post(self, key: str, instrument: str) -> int:
        with closing(Client(self.port)) as client:
            return client.post(order(key) | {"instrument": instrument})

    def served(self) -> list[str]:
        """What the worker serves at /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.worker_port}/metrics", timeout=PATIENCE) as answer:
            return [line for line in answer.read().decode().splitlines() if not line.startswith("#")]

    def metrics(self) -> dict[str, float]:
        """Each series and its number."""
        return {name: float(number) for name, number in (line.rsplit(" ", 1) for line in self.served())}


def promised() -> tuple[str, list[str]]:
    """What the README lets one grep for in the metrics after the order that timed out once, and the lines it shows."""
    pattern, shown = re.findall(r"^\$ curl -s \S+/metrics \| grep -E '(.+)'\n(.+?)^```$", README, re.M | re.S)[0]
    return pattern, shown.splitlines()


@pytest.mark.slow
def test_MEND_7_W_102_as_the_readme_starts_it_the_order_that_timed_out_succeeds(url: str, tmp_path: Path) -> None:
    """S0-27, S0-28, S0-71 … S0-75, S0-96: one timeout, one more attempt, and the metrics as the README prints them."""
    (scenario,) = re.findall(r"^BROKER_SCENARIO='(.+)' make example NAME=orders$", README, re.MULTILINE)
    # Long enough for the attempt that is answered, however busy this machine is; the other one waits all of it.
    example = Example(tmp_path, url, BROKER_SCENARIO=scenario, BROKER_TIMEOUT_MS=8000, OUTBOX_BACKOFF_SEC="0.5")
    with example.running() as running, orders_at(url) as orders:
        assert example.post(KEY, "BTC-USD") == 201
        until(lambda: outbox(orders)[0] == "succeeded", "the second attempt")
        assert outbox(orders) == ("succeeded", 2, None)
        assert rows(orders, "select reason from todoku_attempt") == [("BROKER_TIMEOUT",)]
        assert [noted.event for noted in read_log(tmp_path / "broker.jsonl")] == ["order"]
        pattern, shown = promised()
        until(lambda: example.metrics()["outbox_end_to_end_seconds_count"] == 2, "the hook after the order")
        assert [line for line in example.served() if re.match(pattern, line)] == shown
        latencies = {name: number for name, number in example.metrics().items() if "outbox_latency_ms_count" in name}
        assert latencies.keys() == {
            f'outbox_latency_ms_count{{phase="{phase}"}}' for phase in ("claim", "send", "commit")
        }
        assert min(latencies.values()) >= 2
        assert stopped(running) == 0


async def test_MEND_7_the_broker_forgets_an_order_whose_sender_hung_up_and_ends_by_SIGTERM(tmp_path: Path) -> None:
    """The key of an order that was never answered is free again; one that waits does not keep the server alive."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/orders"
    headers = {"authorization": f"Bearer {TOKEN}", "idempotency-key": KEY, "content-type": "application/json"}
    scenario = {"BROKER_PORT": port, "BROKER_TOKEN": TOKEN, "BROKER_SCENARIO": "AAPL=timeout,fill;BTC-USD=timeout"}
    with process(tmp_path, "orders_example.broker.server", **scenario) as broker:
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
            await _until_served(client, url)
            with pytest.raises(httpx.ReadTimeout):
                await client.post(url, content=msgspec.json.encode(an_order()), headers=headers, timeout=1)
            answer = await client.post(url, content=msgspec.json.encode(an_order()), headers=headers)
            assert answer.status_code == 201, "the second attempt is not behind the first"
            other = an_order(idempotency_key="waits-1-", instrument="BTC-USD")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_posted(other, headers | {"idempotency-key": other.idempotency_key}))
            await writer.drain()
            await client.get(url)  # it was sent after the order, and is answered: the order has arrived
            assert await asyncio.to_thread(stopped, broker) == -signal.SIGTERM
            assert (await reader.readline()).split()[1] == b"503", "the broker answers that it was not executed"
            writer.close()
    assert [noted.key for noted in read_log(tmp_path / "broker.jsonl")] == [KEY]
    assert "Traceback" not in (tmp_path / "log").read_text("utf-8")


def _posted(order: Order, headers: dict[str, str]) -> bytes:
    body = msgspec.json.encode(order)
    lines = ["POST /orders HTTP/1.1", "host: broker", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body


async def _until_served(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(int(PATIENCE / 0.05)):
        try:
            await client.get(url)
        except httpx.TransportError:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError(f"nobody answers at {url}")


class Counting:
    """A broker that answers a given number of requests, and counts those that are open at once."""

    def __init__(self) -> None:
        self.came, self.here, self.most = 0, 0, 0
        self._answers = asyncio.Semaphore(0)

    def let_go(self, number: int = 1000) -> None:
        """Answer so many, of those that wait and those that come."""
        for _ in range(number):
            self._answers.release()

    async def orders(self, request: Request) -> Response:
        self.came, self.here = self.came + 1, self.here + 1
        self.most = max(self.most, self.here)
        await self._answers.acquire()
        self.here -= 1
        execution = Execution(order_ref=f"C-{request.headers['idempotency-key']}", fills=())
        return Response(msgspec.json.encode(execution), 201, media_type="application/json")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        port = free_port()
        app = Starlette(routes=[Route("/orders", self.orders, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve())
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            self.let_go()
            server.should_exit = True
            await serving


@pytest.mark.slow
async def test_MEND_7_W_103_an_order_whose_worker_is_killed_is_counted_as_expired_and_sent_again(
    url: str, tmp_path: Path
) -> None:
    """S0-74, S0-97: killed while the broker has its order; `outbox_lock_lease_expired_total` is 1."""
    broker = Counting()
    async with broker.served() as at:
        example = Example(tmp_path, url, BROKER_URL=at, BROKER_TIMEOUT_MS=600_000)
        with example.running() as running, orders_at(url) as orders:
            assert await asyncio.to_thread(example.post, KEY, "AAPL") == 201
            await _until(lambda: broker.here == 1)
            ((name,),) = rows(orders, "select locked_by from outbox_orders where status = 'sending'")
            os.kill(int(name.rpartition(":")[2]), signal.SIGKILL)
            await _until(lambda: broker.came == 2)
            broker.let_go()
            await _until(lambda: outbox(orders)[0] == "succeeded")
            assert outbox(orders) == ("succeeded", 1, None), "the attempt of the dead worker is given back"
            assert (await asyncio.to_thread(example.metrics))["outbox_lock_lease_expired_total"] == 1
            assert await asyncio.to_thread(stopped, running) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("environ", "at_once"), [({}, 4), ({"OUTBOX_CONCURRENCY": "2"}, 2)])
async def test_MEND_7_a_worker_process_sends_four_orders_at_once_unless_told_otherwise(
    sqlite_url: str, tmp_path: Path, environ: dict[str, str], at_once: int
) -> None:
    """S0-43, S0-86: of nine orders, `OUTBOX_CONCURRENCY` are with the broker, and the next comes when one is answered.

    A worker with one slot more would have sent one more while the broker waited for the next.
    """
    broker = Counting()
    async with broker.served() as url:
        with orders_at(sqlite_url) as orders:
            for number in range(9):
                orders.accepting.accept(an_order(idempotency_key=f"one-of-nine-{number}"))
            given = environ | {"TODOKU_DATABASE": sqlite_url, "BROKER_URL": url, "BROKER_TOKEN": TOKEN}
            command = ("todoku", "run", "--app", "orders_example.box:box", "--no-http")
            with process(tmp_path, *command, BROKER_TIMEOUT_MS=600_000, **given) as worker:
                for came in range(at_once, 9):
                    await _until(lambda: broker.came >= came)  # noqa: B023 - runs at once
                    broker.let_go(1)
                broker.let_go()
                done = "select count(*) from outbox_orders where status = 'succeeded'"
                await _until(lambda: rows(orders, done) == [(9,)])
                assert (broker.came, broker.most) == (9, at_once)
                assert await asyncio.to_thread(stopped, worker) == 0


async def _until(true: Any) -> None:
    for _ in range(int(PATIENCE / 0.02)):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE:.0f} s")
