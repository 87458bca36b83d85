"""`make bench-idle`: an idle worker on PostgreSQL beside a bare commit → NOTIFY → claim loop, and what idleness costs.

Messages come one by one, after random gaps from 0 to 50 ms, so that the worker is caught in every state between busy
and asleep. Measured is the time from the moment a publish has returned to the start of its handler. The bare loop
listens on one connection and claims on another, on the same server, in the same run. Then a daemon with one worker
process has nothing to do, and its processor time and the transactions of its database are counted. `--quick` is a tenth
of the work.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg

from bench import bare
from bench.bars import Bar
from bench.engine import migrate
from bench.running import run
from tests.support.postgres import fresh_database
from todoku.app import App

MESSAGES = 10_000
WATCHED = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


class Heard:
    """When each message started, and an event for the publisher that waits for it."""

    def __init__(self) -> None:
        self.started: dict[int, float] = {}
        self._event = threading.Event()

    def start(self, place: int) -> None:
        self.started[place] = time.perf_counter()
        self._event.set()

    def measure(self, number: int, publish: Callable[[int], None]) -> list[float]:
        """Milliseconds from the return of each publish to the start of its message, sorted."""
        gaps = random.Random(1)
        took = []
        for place in range(number):
            time.sleep(gaps.uniform(0, 0.05))
            self._event.clear()
            publish(place)
            published = time.perf_counter()
            if not self._event.wait(10):
                raise RuntimeError(f"message {place} did not start")
            took.append(max(0.0, self.started[place] - published) * 1000)
        return sorted(took)


def ours(url: str, number: int) -> list[float]:
    """Through the public API: the publisher and the worker share nothing but the database."""
    heard = Heard()
    box, publisher = App(url), App(url)

    async def bench(place: int) -> None:
        heard.start(place)

    box.job(queue="bench")(bench)
    other = publisher.job(queue="bench")(bench)
    worker = box.worker()
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    while worker.health().state != "running":
        time.sleep(0.01)
    took = heard.measure(number, other.enqueue)
    worker.drain()
    thread.join()
    publisher.close()
    box.close()
    return took


def bare_loop(url: str, number: int) -> list[float]:
    """Insert, NOTIFY and commit; the listener claims with the same SQL as the bare drain, and settles."""
    heard, listening, over = Heard(), threading.Event(), threading.Event()
    worker = uuid4()

    def listen() -> None:
        place = 0
        with psycopg.connect(url, autocommit=True) as notices, psycopg.connect(url, autocommit=True) as line:
            line.execute(bare.PG_PLANS)
            notices.execute("listen bench")
            listening.set()
            while not over.is_set():
                for _ in notices.notifies(timeout=0.5, stop_after=1):
                    claims = line.execute(bare.PG_CLAIM, {"worker": worker, "at": "-infinity", "id": 0}).fetchall()
                    claims.sort()  # by their ids, as the settle wants them
                    for _claim in claims:
                        heard.start(place)
                        place += 1
                    held = {"ids": [row[0] for row in claims], "epochs": [row[1] for row in claims], "worker": worker}
                    line.execute(bare.PG_SETTLE, held)

    thread = threading.Thread(target=listen)
    thread.start()
    listening.wait()
    with psycopg.connect(url) as publisher:

        def publish(_place: int) -> None:
            publisher.execute(bare.PG_PUBLISH, ([uuid4()], [bare.PAYLOAD]))
            publisher.execute("notify bench")
            publisher.commit()

        took = heard.measure(number, publish)
    over.set()
    thread.join()
    return took


# ------------------------------------------------------------------------------------------------- nothing to do


def idle_daemon(
    url: str, code: str = "@box.job\ndef nothing() -> None: ...\n", *, watched: float = WATCHED
) -> tuple[float, float]:
    """Of a daemon with one worker process and nothing to do: its share of a core, its transactions a second."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "idle.py").write_text(f"import todoku\nbox = todoku.App()\n{code}")
        command = [sys.executable, "-m", "todoku", "run", "--app", "idle:box", "--workers", "1", "--port", "0"]
        daemon = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "DATABASE_URL": url}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                wait_for_lease(connection)
                time.sleep(5)  # what it does once, at its start, is over
                before = transactions(connection), processor_time(daemon.pid)
                time.sleep(watched)
                after = transactions(connection), processor_time(daemon.pid)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    return (after[1] - before[1]) / watched, (after[0] - before[0]) / watched


def wait_for_lease(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    for _ in range(600):
        if connection.execute("select from todoku_worker where state = 'idle'").fetchone() is not None:
            return
        time.sleep(0.1)
    raise RuntimeError("the daemon did not fall asleep within a minute")


def transactions(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """Of this database so far. Servers report them a second late, at both ends alike; ours are two of them."""
    row = connection.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


def processor_time(parent: int) -> float:
    """Seconds that a process and its children have used so far."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(stat.parent.name) == parent or int(fields[1]) == parent:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


# ---------------------------------------------------------------------------------------------------------- bars


def bars_of_postgres(dsn: str, _number: int, rounds: int, scale: int) -> list[Bar]:
    number = MESSAGES // scale
    bars: list[Bar] = []
    with fresh_database(dsn) as url:
        migrate(url)
        for turn in range(1, rounds + 1):
            loop, found = bare_loop(url, number // 10), ours(url, number)
            for name, took in (("bare", loop), ("todoku", found)):
                print(
                    f"  round {turn}: {name} p50 {p(took, 50):.2f} ms, p99 {p(took, 99):.2f} ms, most {took[-1]:.1f} ms"
                )
            bars += [
                Bar(f"idle_p50_vs_bare_{turn}", p(found, 50) / p(loop, 50), 2.0, " x", at_most=True),
                Bar(f"idle_p99_vs_p50_{turn}", p(found, 99) / p(found, 50), 5.0, " x", at_most=True),
            ]
        share, each_second = idle_daemon(url)
    return [
        *bars,
        Bar("idle_daemon_percent_of_a_core", share * 100, 1.0, " %", at_most=True),
        Bar("idle_daemon_transactions_per_second", each_second, 6.0, "/s", at_most=True),
    ]


def p(took: list[float], percent: int) -> float:
    """A percentile of sorted times."""
    return statistics.median(took) if percent == 50 else took[len(took) * percent // 100]


if __name__ == "__main__":
    run(__doc__, None, bars_of_postgres)
