"""todoku as a program of `make bench`, through its public, typed calls. It is run by the project's own environment.

Variants by the environment: BENCH_DAEMON=1 drains through `todoku run` with its logs on, BENCH_KEYS=1000 orders the
jobs by so many keys.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SLOTS = "64" if os.environ.get("BENCH_HANDLER_MS", "0") == "0" else os.environ.get("BENCH_SLOTS", "200")
os.environ.setdefault("TODOKU_CONCURRENCY", SLOTS)
os.environ.setdefault("TODOKU_CONNECTIONS", os.environ.get("BENCH_PUBLISHERS", "8"))  # one a publisher, as peers have
if os.environ.get("BENCH_ROW") == "kill" and os.environ.get("BENCH_DAEMON") != "1":
    os.environ |= {"TODOKU_LEASE_SEC": "2", "TODOKU_RECLAIM_INTERVAL_SEC": "0.5"}  # a worker without a supervisor

from bench.peers import program  # noqa: E402 - the settings are read when the App is made
from bench.peers.program import DELAY_SEC, TEXT, URL, by_threads, say, timed  # noqa: E402
from bench.peers.todoku_app import RELEASED, bench, box, held, in_turn, work  # noqa: E402
from todoku.engine import operations  # noqa: E402
from todoku.engine.diagnostics.verification import verify as check_invariants  # noqa: E402
from todoku.engine.embedded_worker import run_until_idle  # noqa: E402
from todoku.engine.jobs.job import Call  # noqa: E402
from todoku.store.audit import Signed  # noqa: E402

DRAINS = ("drain", "daemon", "sqlite", "lanes", "snapshot", "future")
WARM = 500
KEYS = int(os.environ.get("BENCH_KEYS", "0"))
BATCH = 10_000


def prepare() -> None:
    """Migrate."""
    box.migrate()


def fill(number: int) -> None:
    """`box.enqueue_many`, 10,000 a transaction."""
    plain = bench.using(delay=DELAY_SEC) if DELAY_SEC else bench
    ordered = [in_turn.using(key=f"key {place}") for place in range(KEYS)]

    def call(n: int) -> Call[None]:
        return (ordered[n % KEYS] if KEYS else plain).call(n, TEXT)

    def enqueue() -> None:
        for start in range(0, number, BATCH):
            box.enqueue_many([call(n) for n in range(start, min(start + BATCH, number))], tx=None)

    box.store.ping()
    timed(enqueue)


def publish(number: int) -> None:
    """`job.enqueue` by threads, each of which waits for the commit of its job; todoku lets them share commits."""

    def enqueue(share: range) -> None:
        for n in share:
            bench.enqueue(n, TEXT)

    box.store.ping()
    by_threads(number, enqueue)


def caller(number: int) -> None:
    """`job.using(tx=…)` in a transaction of asyncpg that inserts a row of the caller's, too, on uvloop."""
    import asyncpg  # noqa: PLC0415 - a worker process does not need it, and its memory is measured
    import uvloop  # noqa: PLC0415

    async def enqueue(line: asyncpg.Connection, share: range) -> None:
        for n in share:
            async with line.transaction():
                await line.execute("insert into bench_order (n) values ($1)", n)
                await bench.using(tx=line).aenqueue(n, TEXT)

    async def enqueue_all(lines: list[asyncpg.Connection]) -> None:
        shares = program.shares(number)
        await asyncio.gather(*(enqueue(line, share) for line, share in zip(lines, shares, strict=True)))

    async def main() -> None:
        lines = [await asyncpg.connect(URL) for _ in range(program.PUBLISHERS)]
        await program.timed_async(enqueue_all(lines))

    uvloop.run(main())


def paced(number: int) -> None:
    """One by one."""
    box.store.ping()
    program.paced(number, lambda n: bench.enqueue(n, TEXT))


def drain() -> None:
    """One worker process that ends its work when nothing is due: `box.drain`."""
    if os.environ.get("BENCH_DAEMON") == "1":
        through_daemon()
        return
    warmed = warm_up()
    worker = box.worker()
    work.wait(warmed)
    run_until_idle(worker)  # what `box.drain` does with a new worker
    program.rest()


def run() -> None:
    """One worker process that goes on: `box.worker().run()`."""
    warmed = warm_up()
    worker = box.worker()
    work.wait(warmed)
    asyncio.run(worker.run())


def warm_up() -> int:
    """Run some jobs before anything is measured, as the programs of other peers do; how many this process has run."""
    box.store.ping()
    if program.STAMPS:
        return 0  # their starts are counted
    box.enqueue_many([bench.call(n, TEXT) for n in range(WARM)], tx=None)
    box.drain()
    return work.done


def verify() -> None:
    """Every invariant holds, or an error. (The frame counts history.)"""
    settings = box.settings
    verdicts = check_invariants(box.store, history_ttl=settings.history_ttl, ledger_ttl=settings.ledger_ttl)
    broken = [f"{verdict.check.name}: {', '.join(verdict.examples)}" for verdict in verdicts if verdict.examples]
    if broken:
        sys.exit("; ".join(broken))
    say({"verified": len(verdicts)})


# ----------------------------------------------------------------------------------------------------------- the daemon


class Daemon:
    """`todoku run`, whose worker processes write into files what other programs print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = (folder / "log").open("w", encoding="utf-8")
        given = {"BENCH_NOTES": str(folder), "TODOKU_DATABASE": URL, "TODOKU_PORT": "0"}
        workers = os.environ.get("BENCH_PROCESSES", "2")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "todoku", "run", "--app", "bench.peers.todoku_app:box", "--workers", workers],
            env=os.environ | given, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def until_ready(self, workers: int) -> None:
        """Every worker process has its lease."""
        deadline = time.monotonic() + 60
        while len(box.store.leases.workers()) < workers:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the daemon did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def counted(self) -> int:
        """How many its workers have run."""
        return sum(int(file.read_text()) for file in self.folder.glob("count-*"))


def through_daemon() -> None:
    """The workers wait at a paused queue; `go` resumes it."""
    with tempfile.TemporaryDirectory(prefix="todoku-bench-") as name:
        pause_queue(paused=True)
        daemon = Daemon(Path(name))
        daemon.until_ready(program.PROCESSES)
        say({"ready": True})
        sys.stdin.readline()
        pause_queue(paused=False)
        over = threading.Event()

        def obey() -> None:
            sys.stdin.readline()
            over.set()

        threading.Thread(target=obey, daemon=True).start()
        said = 0
        while not over.wait(program.SAY_SEC):
            if (now := daemon.counted()) != said:
                said = now
                say({"done": said})
        say({"done": daemon.counted(), "last": 0.0})
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(60)


def pause_queue(*, paused: bool) -> None:
    """What `todoku pause bench` and `todoku resume bench` do."""
    signed = Signed(by="bench", why="the frame says when to begin")
    if paused:
        operations.pause(box.store, "bench", signed)
    else:
        operations.resume(box.store, "bench", signed)


def recover(number: int) -> None:
    """A worker process of a daemon with two is killed while it holds jobs: when has the other begun all of them?"""
    with tempfile.TemporaryDirectory(prefix="todoku-bench-") as name:
        folder = Path(name)
        daemon = Daemon(folder)
        daemon.until_ready(2)
        box.enqueue_many([held.call(n, TEXT) for n in range(number)], tx=None)
        while len(begun(folder)) < number:
            time.sleep(0.01)
        first = begun(folder)
        victim = first[0][0]
        lost = {n for n, (pid, _) in first.items() if pid == victim}
        (folder / RELEASED).touch()
        os.kill(victim, signal.SIGKILL)
        killed, deadline = time.monotonic(), time.monotonic() + 30
        while any(begun(folder)[n][0] == victim for n in lost) and time.monotonic() < deadline:
            time.sleep(0.01)
        again = [at for n, (pid, at) in begun(folder).items() if n in lost and pid != victim]
        whole = len(again) == len(lost)
        say({"lost": len(lost), "again": len(again), "seconds": max(again) - killed if whole else None})
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(60)


def begun(folder: Path) -> dict[int, tuple[int, float]]:
    """Of each job the process that began it last, and when."""
    found: dict[int, tuple[int, float]] = {}
    for file in folder.glob("starts-*"):
        pid = int(file.name.removeprefix("starts-"))
        for line in file.read_text().splitlines():
            n, at = line.split()
            if float(at) > found.get(int(n), (0, 0.0))[1]:
                found[int(n)] = (pid, float(at))
    return found


if __name__ == "__main__":
    work_role = drain if os.environ.get("BENCH_ROW") in DRAINS else run
    program.main(
        prepare=prepare, fill=fill, publish=publish, caller=caller, paced=paced, work=work_role, verify=verify,
        recover=recover,
    )  # fmt: skip
