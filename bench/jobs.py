"""`make bench-jobs`: a million jobs on PostgreSQL, and what one of them costs beside one of ten thousand.

Worker processes drain no-op jobs through the public API, history kept. A job's cost is the time between the first and
the last settled one, by the server's own clock, so that starting up counts for neither. The resident memory of every
worker is sampled all the while. `--number` is how many (1,000,000), `--json` prints one object at the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.bars import Bar, report
from bench.engine import drain_worker, fill, migrate
from bench.running import SERVER
from tests.support.postgres import fresh_database, server_dsn, stop_server

FEW = 10_000
ROUNDS = 5
SAMPLE_SEC = 0.25
SAY_SEC = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")

BETWEEN = """
    select count(*), extract(epoch from max(finished_at) - min(finished_at))::float8
      from todoku_history where delivery_id > %s"""
LAST = "select coalesce(max(delivery_id), 0) from todoku_history"
DONE = "select coalesce(sum(n_tup_ins), 0) from pg_stat_user_tables where relname like 'todoku_history%'"


@dataclass
class Memory:
    """Resident bytes of each worker, over time."""

    samples: dict[int, list[int]] = field(default_factory=dict)

    def sample(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):  # it has ended
                continue
            self.samples.setdefault(pid, []).append(pages * PAGE)

    def growth(self) -> float:
        """The most of the second half over the most of the first, of the worker that grew most."""
        halves = [(seen[: len(seen) // 2], seen[len(seen) // 2 :]) for seen in self.samples.values() if len(seen) > 1]
        return max((max(second) / max(first) for first, second in halves), default=1.0)

    def most(self) -> float:
        """MiB."""
        return max((max(seen) for seen in self.samples.values()), default=0) / (1 << 20)


@dataclass(frozen=True)
class Ran:
    """What so many jobs cost, in microseconds each."""

    number: int
    enqueue_us: float
    run_us: float
    memory: Memory


def ran(url: str, number: int, processes: int, *, say: bool) -> Ran:
    """Enqueue so many, then let worker processes run them."""
    with psycopg.connect(url, autocommit=True) as looking:
        ((before,),) = looking.execute(LAST).fetchall()
        began = time.perf_counter()
        for start in range(0, number, 100_000):
            fill(url, min(100_000, number - start))
            if say:
                print(f"  enqueued {min(start + 100_000, number):,} of {number:,}", flush=True)
        enqueued = time.perf_counter() - began
        memory = Memory()
        run_workers(url, processes, looking, memory, say=say)
        ((done, seconds),) = looking.execute(BETWEEN, (before,)).fetchall()
    if done != number:
        raise RuntimeError(f"{done:,} jobs ran instead of {number:,}")
    return Ran(number, enqueued / number * 1e6, seconds / number * 1e6, memory)


def run_workers(
    url: str, processes: int, looking: psycopg.Connection[tuple[int]], memory: Memory, *, say: bool
) -> None:
    """Worker processes begin together; sample them until the last one has nothing left to do."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    children = [context.Process(target=drain_worker, args=(url, ready, False)) for _ in range(processes)]
    for child in children:
        child.start()
    ((before,),) = looking.execute(DONE).fetchall()
    ready.wait()
    said = time.monotonic()
    while ready.n_waiting < processes:
        memory.sample([child.pid for child in children if child.pid is not None])
        if any(child.exitcode is not None for child in children):
            raise RuntimeError("a worker ended before its time")
        if say and time.monotonic() >= said + SAY_SEC:
            said = time.monotonic()
            ((done,),) = looking.execute(DONE).fetchall()
            now = ", ".join(f"{seen[-1] >> 20} MiB" for seen in memory.samples.values())
            print(f"  about {done - before:,} have run so far; workers {now}", flush=True)
        time.sleep(SAMPLE_SEC)
    ready.wait()
    for child in children:
        child.join()


def bars(few: Ran, many: Ran) -> list[Bar]:
    return [
        Bar("jobs_run_cost_vs_few", many.run_us / few.run_us, 1.3, "x", at_most=True),
        Bar("jobs_enqueue_cost_vs_few", many.enqueue_us / few.enqueue_us, 1.3, "x", at_most=True),
        Bar("jobs_worker_memory_second_half", many.memory.growth(), 1.1, "x", at_most=True),
    ]


def measured(dsn: str, number: int, processes: int) -> tuple[Ran, Ran, Ran]:
    """Few, many, and few again beside the history of many."""
    with fresh_database(dsn) as url:
        migrate(url)
        ran(url, FEW, processes, say=False)  # warms the server's cache
        few = median([ran(url, FEW, processes, say=False) for _ in range(ROUNDS)])
        print(f"  {FEW:,} at a time: {told(few)}", flush=True)
        many = ran(url, number, processes, say=True)
        print(f"  {number:,} at once: {told(many)}", flush=True)
        again = median([ran(url, FEW, processes, say=False) for _ in range(ROUNDS)])
        print(f"  {FEW:,} at a time, afterwards: {told(again)}", flush=True)
    return few, many, again


def median(rounds: list[Ran]) -> Ran:
    enqueue = statistics.median(one.enqueue_us for one in rounds)
    return Ran(FEW, enqueue, statistics.median(one.run_us for one in rounds), rounds[0].memory)


def told(one: Ran) -> str:
    return f"{one.enqueue_us:.1f} µs to enqueue, {one.run_us:.1f} µs to run, workers up to {one.memory.most():.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000_000, help="how many jobs (1,000,000)")
    parser.add_argument("--processes", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    options = parser.parse_args()
    if options.number < FEW or options.processes < 1:
        parser.error(f"--number is at least {FEW}, --processes at least 1")
    home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
    try:
        few, many, again = measured(server_dsn(home, SERVER), options.number, options.processes)
    finally:
        stop_server(home)
    found = bars(few, many)
    if options.json:
        sides = {"few": few, "many": many, "few_afterwards": again}
        costs = {
            name: {"number": one.number, "enqueue_us": one.enqueue_us, "run_us": one.run_us, "mib": one.memory.most()}
            for name, one in sides.items()
        }
        print(json.dumps({**costs, "bars": {bar.name: [bar.measured, bar.required, bar.ok] for bar in found}}))
    else:
        report(found)


if __name__ == "__main__":
    main()
