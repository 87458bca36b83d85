"""`make bench-growth`: what a message costs as history and backlog grow, on PostgreSQL, in one run.

Two databases grow by SQL from 10,000 to 10,000,000 rows, one by history and one by a backlog of the same queue that is
due later; a third stays at 10,000. At each size the same number of jobs is published and drained through the store, and
the processor time of the server and of this process for each job is added up. Contenders take turns, and the median of
the rounds counts. Ten million rows take some ten minutes and 15 GB. `--quick` stops at 100,000, `--most` where it says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.bars import Bar, report
from bench.running import SERVER
from bench.server import ServerMeter
from bench.store import Bench, database
from tests.support.postgres import server_dsn, stop_server

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
ROUNDS: Final = 3
JOBS: Final = 10_000
CHUNK: Final = 500_000
DEAD: Final = 200_000
FUTURE: Final = 1_000_000

# A row for each n of a series, as a publish and a settle leave them. History is of the last week.
_MESSAGES: Final = """
insert into todoku_message (id, topic, type, payload, content_type, created_at)
select (lpad(to_hex(n), 12, '0') || '70008000' || substr(md5(n::text), 1, 12))::uuid, 'bench.done', 'bench.done',
       json_build_object('order', repeat('x', 180)), 'application/json', statement_timestamp()
  from generate_series({first}, {last}) n returning seq
"""
_HISTORY: Final = """
with message as ({messages})
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count,
                            worker_id, run_ms)
select statement_timestamp() - random() * interval '6 days', nextval('todoku_delivery_id_seq'), 1, seq, 'bench',
       'bench', 1, 0, '00000000-0000-4000-8000-000000000000', 3 from message
"""
_BACKLOG: Final = """
with message as ({messages})
insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at, updated_at)
select seq, 'bench', 'bench', 0, 'pending', 6, statement_timestamp() + interval '1 day' * (1 + random()),
       statement_timestamp() from message
"""


class Growing:
    """A database that is filled further and further."""

    def __init__(self, bench: Bench, statement: str) -> None:
        self.bench = bench
        self.rows = 0
        self._statement = statement
        self._meter = ServerMeter(bench.url)
        with psycopg.connect(bench.url, autocommit=True) as connection:
            for back in range(8):
                _add_day(connection, back)

    def grow(self, size: int, say: str) -> None:
        """Adds rows up to `size`, and prints how far it is."""
        with psycopg.connect(self.bench.url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            while self.rows < size:
                number = min(CHUNK, size - self.rows)
                messages = _MESSAGES.format(first=self.rows + 1, last=self.rows + number)
                connection.execute(self._statement.format(messages=messages))
                self.rows += number
                if size > CHUNK:
                    print(f"  {say}: {self.rows:,} of {size:,} rows", flush=True)
            connection.execute("vacuum (analyze)")
            connection.execute("checkpoint")

    def cost(self, jobs: int) -> float:
        """Microseconds of processor time a job, from its publish to its history: the server's and this process's."""

        def work() -> int:
            self.bench.fill(jobs)
            return self.bench.drain()

        own = time.process_time()
        paid, done = self._meter.paid(work)
        own = time.process_time() - own
        if done != jobs:
            raise RuntimeError(f"{done} instead of {jobs} were done")
        return (own + (paid.seconds or 0.0)) / jobs * 1e6

    def close(self) -> None:
        """Closes its connection."""
        self._meter.close()


def _add_day(connection: psycopg.Connection[Any], back: int) -> None:
    day = (datetime.now(UTC) - timedelta(days=back)).date()
    bounds = f"from ('{day} 00:00Z') to ('{day + timedelta(days=1)} 00:00Z')"
    name = f"todoku_history_{day:%Y%m%d}"
    connection.execute(f"create table if not exists {name} partition of todoku_history for values {bounds}")


@contextmanager
def growing(dsn: str, statement: str) -> Iterator[Growing]:
    """A fresh database that grows by this statement."""
    with database(dsn, JOBS) as bench:
        grown = Growing(bench, statement)
        try:
            yield grown
        finally:
            grown.close()


def costs(rounds: int, jobs: int, say: str, contenders: dict[str, Growing]) -> dict[str, float]:
    """The median cost of each contender; they take turns, and a first turn is not counted: it plans and loads."""
    for each in contenders.values():
        each.cost(jobs // 10)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, each in contenders.items():
            found[name].append(each.cost(jobs))
            print(f"  {say}, round {turn + 1} of {rounds}: {name} {found[name][-1]:.1f} µs a job", flush=True)
    return {name: statistics.median(some) for name, some in found.items()}


def growth(dsn: str, most: int, jobs: int) -> Iterator[Bar]:
    """Databases that stay small beside some that grow: each size is compared with the small one of the same minute."""
    with ExitStack() as stack:
        enter = stack.enter_context
        small = enter(growing(dsn, _HISTORY))
        small.grow(SIZES[0], "small")
        grown = {
            "history": enter(growing(dsn, _HISTORY)),
            "backlog": enter(growing(dsn, _BACKLOG)),
        }
        for size in (size for size in SIZES if size <= most):
            for name, each in grown.items():
                each.grow(size, name)
            found = costs(ROUNDS, jobs, f"{size:,} rows", {"small": small, **grown})
            for name in grown:
                yield Bar(f"growth_cost_{name}_{size}", found[name] / found["small"], 1.3, at_most=True)
            if size == min(most, SIZES[-1]):
                yield Bar(f"growth_history_{size}_vs_without", found["small"] / found["history"], 0.95)


def beside_future(dsn: str, number: int, jobs: int) -> Bar:
    """The same queue has so many jobs of tomorrow."""
    with growing(dsn, _BACKLOG) as plain, growing(dsn, _BACKLOG) as future:
        future.grow(number, "future")
        found = costs(ROUNDS, jobs, f"{number:,} future jobs", {"without": plain, "with": future})
    return Bar(f"growth_future_{number}_vs_without", found["without"] / found["with"], 0.95)


def beside_snapshot(dsn: str, number: int, jobs: int) -> Bar:
    """Another session holds a snapshot since before so many jobs were done: none of their rows can be removed."""
    with growing(dsn, _HISTORY) as plain, growing(dsn, _HISTORY) as held, psycopg.connect(held.bench.url) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from todoku_delivery")
        print(f"  {number:,} jobs are done under a held snapshot …", flush=True)
        held.cost(number)
        found = costs(ROUNDS, jobs, f"{number:,} dead rows", {"without": plain, "held": held})
    return Bar(f"growth_snapshot_{number}_vs_without", found["without"] / found["held"], 0.95)


def bars(dsn: str, most: int, jobs: int, scale: int) -> list[Bar]:
    """Everything; what was found is printed as soon as it is known."""
    found: list[Bar] = []
    measures: list[Callable[[], Bar]] = [
        lambda: beside_snapshot(dsn, DEAD // scale, jobs),
        lambda: beside_future(dsn, FUTURE // scale, jobs),
    ]
    for measure in measures:
        found.append(measure())
        print(found[-1], flush=True)
    for bar in growth(dsn, most, jobs):
        found.append(bar)
        print(bar, flush=True)
    return found


def main() -> None:
    """Measure on a server of its own, or on that of BENCH_POSTGRES=dsn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 100,000 rows, a tenth of the others")
    parser.add_argument("--most", type=int, choices=SIZES, default=SIZES[-1], help="the largest size")
    options = parser.parse_args()
    most, jobs, scale = (min(options.most, 100_000), JOBS // 5, 10) if options.quick else (options.most, JOBS, 1)
    if given := os.environ.get("BENCH_POSTGRES"):
        report(bars(given, most, jobs, scale))
        return
    home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
    try:
        report(bars(server_dsn(home, SERVER), most, jobs, scale))
    finally:
        stop_server(home)


if __name__ == "__main__":
    main()
