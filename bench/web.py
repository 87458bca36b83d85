"""`make bench-web`: the dashboard over a long history, and what ten open dashboards cost the engine.

PostgreSQL is filled with 10,000,000 rows of history and 100,000 dead letters, SQLite with a tenth of both. A daemon
serves them in a process of its own. Each page and search is asked for 30 times, in turns and slowly enough that what
all viewers share has to be computed again; the 95th percentile of the time until the whole answer is there counts.
Then worker processes drain one long backlog, in windows of a few seconds, in turns alone and beside ten viewers, each
with its event stream, who fetch the overview at every tick as a browser does; each window is compared with its
neighbour. `--quick` is a tenth of the rows; BENCH_HISTORY=n sets the rows.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from bench.bars import Bar
from bench.engine import SLOTS, migrate
from bench.running import run
from bench.web_filling import fill_postgres, fill_sqlite, multiply_postgres, multiply_sqlite
from tests.support.postgres import fresh_database
from todoku.app import App

HISTORY: Final = 10_000_000
DEAD: Final = 100_000
REQUESTS: Final = 30
VIEWERS: Final = 10
PAIRS: Final = 5
WINDOW_SEC: Final = 8.0
"""Four ticks of the dashboards."""
SETTLE_SEC: Final = 2.0
"""What viewers see first is read at once: they stay open for longer than that."""
JOBS: Final = 6_000_000
"""More than can be drained in all windows."""
SLOWEST_MS: Final = 150.0
TOKEN: Final = "a-token-of-this-benchmark-0123456789"
PAGES: Final = (
    "/",
    "/?per=hour",
    "/queues",
    "/endpoints",
    "/deliveries",
    "/deliveries?q=status:succeeded",
    "/deliveries?q=status:aborted reason:TIMEOUT",
    "/deliveries?q=queue:queue-1",
    "/deliveries?q=destination:ship-3 topic:order.2",
    "/deliveries?q=key:customer-77",
    "/deliveries?q=shelf",
    "/deliveries?q=payload.order_id:4242",
    "/deliveries/{dead}",
    "/dead-letters",
    "/schedules",
    "/workers",
    "/sources",
    "/audit",
    "/settings",
    "/doctor",
)


class Served(NamedTuple):
    """A daemon: its address, and the process that answers there."""

    address: str
    pid: int


@contextmanager
def daemon(url: str) -> Iterator[Served]:
    """A daemon on this database, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shown.py").write_text("import todoku\nbox = todoku.App()\n@box.job\ndef nothing() -> None: ...\n")
        port = _free_port()
        command = [sys.executable, "-m", "todoku", "run", "--app", "shown:box", "--workers", "1", "--port", str(port)]
        environ = {**os.environ, "DATABASE_URL": url, "TODOKU_TOKEN": TOKEN}
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_ready(address)
            yield Served(address, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _wait_until_ready(address: str) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{address}/healthz").status_code == 200:
                return
        except httpx.TransportError:  # it does not listen yet
            time.sleep(0.1)
    raise RuntimeError("the daemon did not start within a minute")


# ---------------------------------------------------------------------------------------------------------- pages


def page_bars(name: str, url: str) -> list[Bar]:
    """The 95th percentile of each page that there is."""
    with closing(App(url)) as box:
        (dead,) = box.store.deliveries.newest_dead(1)
    took: dict[str, list[float]] = {}
    with daemon(url) as served, httpx.Client(base_url=served.address, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        paths = [path.replace("{dead}", str(dead.id)) for path in PAGES]
        answers = {path: client.get(path, headers={"accept": "text/html"}) for path in paths}
        missing = [path for path, answer in answers.items() if answer.status_code == 404]
        failed = {path: answer.status_code for path, answer in answers.items() if answer.status_code not in (200, 404)}
        for _ in range(REQUESTS):
            began = time.perf_counter()
            for path in paths:
                if path not in missing and path not in failed:
                    took.setdefault(path, []).append(_milliseconds(client, path))
            time.sleep(max(0.0, began + 1.2 - time.perf_counter()))
    print(f"  {name}: not there (404): {', '.join(missing) or 'none'}; failed: {failed or 'none'}", flush=True)
    for path, times in took.items():
        print(f"  {name} {path}: p50 {statistics.median(times):.1f} ms, p95 {p95(times):.1f} ms", flush=True)
    slowest = max(took, key=lambda path: p95(took[path]))
    return [
        *(Bar(f"{name}_p95_ms {path}", p95(times), SLOWEST_MS, "ms", at_most=True) for path, times in took.items()),
        Bar(f"{name}_slowest_page_p95_ms", p95(took[slowest]), SLOWEST_MS, "ms", at_most=True),
        Bar(f"{name}_pages_failed", len(failed), 0, at_most=True),
    ]


def _milliseconds(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path, headers={"accept": "text/html"}).raise_for_status()
    return (time.perf_counter() - began) * 1000


def p95(times: list[float]) -> float:
    """The 95th percentile."""
    return sorted(times)[-(-len(times) * 95 // 100) - 1]


# -------------------------------------------------------------------------------------------------------- viewers


def watch(address: str, number: int, opened: Event) -> None:
    """So many dashboards that are open while `opened` is set, in a process of their own, until it is ended."""
    asyncio.run(_watch(urlsplit(address).port or 80, number, opened))


async def _watch(port: int, number: int, opened: Event) -> None:
    while True:
        await asyncio.to_thread(opened.wait)
        viewers = [asyncio.create_task(_view(port)) for _ in range(number)]
        while opened.is_set():
            await asyncio.sleep(0.05)
            for viewer in viewers:
                if viewer.done():
                    viewer.result()
                    raise RuntimeError("the server has ended the stream of a viewer")
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)


async def _view(port: int) -> None:
    """One open page: its stream says when, one request brings the page."""
    stream, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_request("/live", "text/event-stream"))
        shown = ""
        while line := await stream.readline():
            if line.startswith(b"event: tick"):
                shown = await _fetch(port, shown)
    finally:
        writer.close()


async def _fetch(port: int, shown: str) -> str:
    """Asks for what has changed since the version that is shown, as `live.js` does. Returns the version shown now."""
    page, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        more = f"Connection: close\r\nX-Todoku-Live: 1\r\nIf-None-Match: {shown}\r\n"
        writer.write(_request("/", "text/html", more))
        body = await page.read(-1)
    finally:
        writer.close()
    if not body.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304")):
        raise RuntimeError(body[:200].decode(errors="replace"))
    return body.partition(b"\r\netag: ")[2].partition(b"\r\n")[0].decode()


def _request(path: str, accept: str, more: str = "") -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nAccept: {accept}\r\n{more}\r\n"
    ).encode()


def work(url: str, place: int, counts: Sequence[int]) -> None:
    """A worker process that counts what it ran in memory that is shared, until it is ended."""
    os.environ["TODOKU_CONCURRENCY"] = str(SLOTS)
    box = App(url)

    @box.job(queue="bench")
    async def bench(order: str) -> None:  # noqa: ARG001 - the name is part of the stored call
        counts[place] += 1  # type: ignore[index]

    asyncio.run(box.worker().run())


def rate_bar(name: str, url: str, processes: int) -> Bar:
    """What ten open dashboards leave of the engine's rate: one long drain, in which they are open every other window.

    The speed of a machine changes from minute to minute, so each window is compared with its neighbour.
    """
    context = multiprocessing.get_context("spawn")
    counts, opened = context.RawArray("q", processes), context.Event()
    with daemon(url) as served:
        workers = [context.Process(target=work, args=(url, place, counts), daemon=True) for place in range(processes)]
        watching = context.Process(target=watch, args=(served.address, VIEWERS, opened), daemon=True)
        for child in (*workers, watching):
            child.start()
        _wait_until(lambda: all(counts), "the workers run nothing")
        ratios = list(_ratios(name, counts, opened, served.pid))
        if not watching.is_alive():
            raise RuntimeError("the viewers have left")
        for child in (*workers, watching):
            child.kill()
            child.join()
    return Bar(f"{name}_rate_beside_ten_dashboards", statistics.median(ratios), 0.97)


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise RuntimeError(otherwise)


def _ratios(name: str, counts: Sequence[int], opened: Event, serving: int) -> Iterator[float]:
    for pair in range(PAIRS):
        rates, busy = {}, {}
        for is_open in (False, True) if pair % 2 else (True, False):
            (opened.set if is_open else opened.clear)()
            time.sleep(SETTLE_SEC)
            before, used, began = sum(counts), _processor_ms(serving), time.perf_counter()
            time.sleep(WINDOW_SEC)
            took = time.perf_counter() - began
            rates[is_open], busy[is_open] = (sum(counts) - before) / took, (_processor_ms(serving) - used) / took
        if min(rates.values()) < 100:
            raise RuntimeError("the backlog was too small: nothing is left to drain")
        print(f"  {name}: alone {rates[False]:,.0f}/s, beside {VIEWERS} dashboards {rates[True]:,.0f}/s", flush=True)
        print(f"    the daemon's processor time: {busy[False]:.1f} and {busy[True]:.1f} ms a second", flush=True)
        yield rates[True] / rates[False]


def _processor_ms(pid: int) -> float:
    """The processor time that a process has used, all its threads together; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


# ----------------------------------------------------------------------------------------------------------- bars


def bars_of_postgres(dsn: str, _number: int, _rounds: int, scale: int) -> list[Bar]:
    history = int(os.environ.get("BENCH_HISTORY", HISTORY // scale))
    with fresh_database(dsn) as url:
        migrate(url)
        began = time.perf_counter()
        fill_postgres(url, history, DEAD * history // HISTORY)
        print(f"  PostgreSQL: {history:,} rows of history in {time.perf_counter() - began:.0f} s", flush=True)
        bars = page_bars("postgres", url)
        multiply_postgres(url, JOBS)
        return [*bars, rate_bar("postgres", url, 2)]


def bars_of_sqlite(number: int, _rounds: int) -> list[Bar]:
    history = int(os.environ.get("BENCH_HISTORY", HISTORY * number // 100_000)) // 10
    with tempfile.TemporaryDirectory(prefix="todoku-bench-", dir="/tmp") as folder:
        url = f"sqlite:///{folder}/bench.db"
        migrate(url)
        fill_sqlite(url, history, DEAD * history // HISTORY)
        print(f"  SQLite: {history:,} rows of history", flush=True)
        bars = page_bars("sqlite", url)
        multiply_sqlite(url, JOBS)
        return [*bars, rate_bar("sqlite", url, 1)]


if __name__ == "__main__":
    run(__doc__, bars_of_sqlite, bars_of_postgres)
