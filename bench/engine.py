"""`make bench-engine`: workers through the public API beside the bare SQL loop, on the same server, in the same run.

No-op async jobs, two worker processes on PostgreSQL and one on SQLite, history kept, metrics on, spans sampled (one in
a hundred). Contenders take turns and the median of the rounds counts. `--quick` is a tenth of the work.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar
from unittest.mock import patch

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from bench import bare
from bench.bars import Bar, compared
from bench.perf_shares import shared
from bench.running import run
from bench.server import Paid, ServerMeter, pgbench_rate
from tests.support.postgres import fresh_database
from todoku.app import App
from todoku.store.deliveries import Filter
from todoku.store.sqlite.database import file_path

T = TypeVar("T")
TEXT = "x" * 180
SLOTS = 64
OF_BARE = 0.75
"""The part of the bare loop's rate that is required of a drain on PostgreSQL."""
LOST_AFTER_SEC = 120.0
"""A process that does not come to the start or the end for so long has died: the run ends with an error."""


def app(url: str, *, spans: bool = False, **settings: str) -> tuple[App, Any]:
    """An App with one job that does nothing, as anybody would write it."""
    os.environ.update({"TODOKU_CONCURRENCY": str(SLOTS), "TODOKU_NOTIFY": "true", **settings})
    if spans:
        trace.set_tracer_provider(TracerProvider(sampler=ParentBased(ALWAYS_ON)))
        os.environ["TODOKU_SPAN_RATIO"] = "0.01"
    box = App(url)

    @box.job(queue="bench")
    async def bench(order: str) -> None:
        pass

    return box, bench


def fill(url: str, number: int, **options: Any) -> None:
    """Enqueue, 10,000 a transaction."""
    box, job = app(url)
    for start in range(0, number, 10_000):
        call = job.using(**options).call
        box.enqueue_many([call(TEXT) for _ in range(min(10_000, number - start))], tx=None)
    box.close()


# ------------------------------------------------------------------------------------------------------ draining


def drain_worker(url: str, ready: Barrier, spans: bool) -> None:
    """One worker process: everything is imported and open before the clock starts."""
    box, _ = app(url, spans=spans)
    box.store.ping()
    ready.wait()
    box.drain()
    ready.wait()
    box.close()


def drain_bare(url: str, ready: Barrier, _spans: bool) -> None:
    """One bare loop."""
    ready.wait()
    if url.startswith("sqlite"):
        bare.drain_sqlite(file_path(url), time.time_ns() // 1000)
    else:
        bare.drain_postgres(url)
    ready.wait()


def drained(url: str, number: int, work: Callable[..., None], processes: int) -> Callable[[], float]:
    """A measure: fill, then time how fast so many processes drain it, until the last row is settled."""

    def measure() -> float:
        fill(url, number)
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(processes + 1, timeout=LOST_AFTER_SEC)
        children = [context.Process(target=work, args=(url, ready, True)) for _ in range(processes)]
        for child in children:
            child.start()
        took = say_paid(url, number, lambda: timed(ready))
        for child in children:
            child.join()
        check_empty(url)
        return number / took

    return measure


def timed(ready: Barrier) -> float:
    """Seconds from the moment all processes are ready until the last of them is done."""
    ready.wait()
    began = time.perf_counter()
    ready.wait()
    return time.perf_counter() - began


def say_paid(url: str, number: int, work: Callable[[], T]) -> T:
    """Print what the server paid for each job of this work; of SQLite there is no server."""
    if url.startswith("sqlite"):
        return work()
    paid, result = metered(url, work)
    print(f"    {paid.a_job(number)}", flush=True)
    return result


def metered(url: str, work: Callable[[], T]) -> tuple[Paid, T]:
    """What the server pays for this work, and what the work returns."""
    meter = ServerMeter(url)
    found = meter.paid(work)
    meter.close()
    return found


def check_empty(url: str) -> None:
    """Nothing was left behind; then the history is dropped."""
    box, _ = app(url)
    left = box.store.deliveries.find(Filter(), limit=1).items
    box.store.retention.prune(history_ttl=0.001)
    box.close()
    if left:
        raise RuntimeError(f"{left[0]} was left behind")


def server_limit(url: str, number: int) -> list[str]:
    """How fast the server is by itself: pgbench with the product's own statements, two clients; and where time goes."""
    fill(url, number)
    shares, (paid, rate) = shared(lambda: metered(url, lambda: pgbench_rate(url, number, 2)))
    if rate is None:
        bare.drain_postgres(url)
        check_empty(url)
        return ["pgbench: not installed (Debian's package postgresql has it), passed over"]
    check_empty(url)
    by_itself = "the server by itself (pgbench with the product's statements, two clients)"
    return [f"{by_itself}: {rate:,.0f} jobs/s, {paid.a_job(number)}", f"{shares}, during that"]


def limits(url: str, number: int, rounds: int, said: Callable[[str], None]) -> list[Bar]:
    """For `make bench`: todoku beside the bare loop, and the bare loop with ten times the rows beside itself.

    `said`: takes what is no bar, line by line.
    """
    small, large = number // 5, number * 2
    names = f"bare loop, {small:,} jobs", f"bare loop, {large:,} jobs", f"todoku, {large:,} jobs"
    with patch.dict(os.environ):  # `app` changes it, and other benchmarks follow
        migrate(url)
        # First: its clients begin without a position, and would walk over deleted rows.
        for line in server_limit(url, number):
            said(line)
        rates = few, loop, ours = compared(
            rounds, "PostgreSQL, two processes", (names[0], drained(url, small, drain_bare, 2)),
            (names[1], drained(url, large, drain_bare, 2)), (names[2], drained(url, large, drain_worker, 2)),
        )  # fmt: skip
    for name, rate in zip(names, rates, strict=True):
        said(f"{name}, two processes: {rate:,.0f} jobs/s")
    return [
        Bar(f"bare loop: {large:,} jobs beside {small:,}", loop / few, 0.9, "x"),
        Bar(f"drain of {large:,} jobs beside the bare loop", ours / loop, OF_BARE, "x"),
        Bar(f"drain of {large:,} jobs: above this the bare loop is at fault", ours / loop, 1.0, "x", at_most=True),
    ]


# ------------------------------------------------------------------------------------------------------- latency


def latencies(url: str, number: int) -> list[float]:
    """Milliseconds from the moment a publish has returned to the start of its handler, in an idle worker."""
    started: dict[int, float] = {}
    heard = threading.Event()
    os.environ["TODOKU_NOTIFY"] = "true"
    box = App(url)

    @box.job(queue="bench")
    async def bench(place: int) -> None:
        started[place] = time.perf_counter()
        heard.set()

    worker = box.worker()
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    while worker.health().state != "running":
        time.sleep(0.01)
    publisher = App(url)  # another process would do: it shares nothing with the worker

    @publisher.job(name := "bench", queue="bench")
    async def other(place: int) -> None:
        pass

    measured = []
    for place in range(number):
        time.sleep(0.03)
        heard.clear()
        other.enqueue(place)
        published = time.perf_counter()
        if not heard.wait(10):
            raise RuntimeError(f"{name} {place} did not start")
        measured.append(max(0.0, started[place] - published) * 1000)
    worker.drain()
    thread.join()
    publisher.close()
    box.close()
    return sorted(measured)


def priority_wait(url: str, queued: int) -> float:
    """Seconds until a priority-10 job starts behind so many of 100 ms with priority 0."""
    box = App(url)
    urgent = threading.Event()
    begun = threading.Event()

    @box.job(queue="bench")
    async def bench(number: int) -> None:
        begun.set()
        if number < 0:
            urgent.set()
        await asyncio.sleep(0.1)

    for start in range(0, queued, 10_000):
        box.enqueue_many([bench.call(n) for n in range(min(10_000, queued - start))], tx=None)
    worker = box.worker()
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    begun.wait(30)
    time.sleep(3)  # long enough for the worker to claim ahead as far as it ever will
    bench.using(priority=10).enqueue(-1)
    began = time.perf_counter()
    if not urgent.wait(60):
        raise RuntimeError("the urgent job did not start")
    took = time.perf_counter() - began
    worker.drain()
    thread.join()
    box.close()
    return took


# ---------------------------------------------------------------------------------------------------- publishing


def publishing(url: str, number: int, notify: str) -> Callable[[], float]:
    """A measure: how many a second 8 concurrent publishers commit, one by one, beside a worker that runs them."""

    def measure() -> float:
        box, job = app(url, TODOKU_NOTIFY=notify, TODOKU_CONNECTIONS="12")
        worker = box.worker()
        loop = threading.Thread(target=lambda: asyncio.run(worker.run()))
        loop.start()
        each = number // 8

        def publish() -> None:
            for _ in range(each):
                job.enqueue(TEXT)

        threads = [threading.Thread(target=publish) for _ in range(8)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        worker.drain()
        loop.join()
        box.drain()
        box.close()
        return each * 8 / took

    return measure


# ---------------------------------------------------------------------------------------------------------- bars


def bars_of_postgres(dsn: str, number: int, rounds: int, scale: int) -> list[Bar]:
    bars: list[Bar] = []
    with fresh_database(dsn) as url:
        migrate(url)
        ours, loop = compared(
            rounds, "PostgreSQL, two processes", ("todoku", drained(url, number, drain_worker, 2)),
            ("bare", drained(url, number, drain_bare, 2)),
        )  # fmt: skip
        bars += [
            Bar("postgres_engine_drain_vs_bare", ours / loop, OF_BARE),
            # Above it the bare loop is at fault.
            Bar("postgres_engine_drain_beyond_bare", ours / loop, 1.0, at_most=True),
            Bar("postgres_engine_drain_per_second", ours, 40_000, "/s"),
        ]
        print(*server_limit(url, number), sep="\n", flush=True)
    with fresh_database(dsn) as url:
        migrate(url)
        on, off = compared(
            rounds, "PostgreSQL, 8 publishers", ("notify on", publishing(url, 8_000 // scale, "true")),
            ("notify off", publishing(url, 8_000 // scale, "false")),
        )  # fmt: skip
        bars.append(Bar("postgres_notify_on_vs_off", on / off, 0.9))
    with fresh_database(dsn) as url:
        migrate(url)
        bars += latency_bars("postgres", url, 300 // min(scale, 3))
        waited = priority_wait(url, 50_000 // scale)
        bars.append(Bar("postgres_priority_start_s", waited, 1.1, "s", at_most=True))
    return bars


def latency_bars(name: str, url: str, number: int) -> list[Bar]:
    found = latencies(url, number)
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
    print(f"  {name}, idle: publish to start p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)
    return [
        Bar(f"{name}_latency_p50_ms", p50, 3.0, "ms", at_most=True),
        Bar(f"{name}_latency_p99_ms", p99, 15.0, "ms", at_most=True),
    ]


def bars_of_sqlite(number: int, rounds: int) -> list[Bar]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        migrate(url)
        ours, loop = compared(
            rounds, "SQLite, one process", ("todoku", drained(url, number, drain_worker, 1)),
            ("bare", drained(url, number, drain_bare, 1)),
        )  # fmt: skip
        latency_bars("sqlite", url, 100)  # printed; nothing is required of it: a claim waits for the disk twice
        return [Bar("sqlite_engine_drain_vs_bare", ours / loop, 0.5)]


def migrate(url: str) -> None:
    box = App(url)
    box.migrate()
    box.close()


if __name__ == "__main__":
    run(__doc__, bars_of_sqlite, bars_of_postgres)
