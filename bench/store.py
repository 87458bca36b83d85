"""`make bench-store`: the store's own rate beside a bare SQL loop's, on the same server, in the same run.

Every rate is the median of rounds in which the contenders take turns. One process, batches of 500, a payload of 200
bytes, fsync on. `--quick` is a tenth of the work, to see that it runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import msgspec
import psycopg

from bench import bare
from bench.bars import Bar, compared, rate
from bench.running import run
from tests.support.postgres import fresh_database
from todoku.app import App, new_id
from todoku.core.decision import SUCCEEDED
from todoku.core.identity import lane_id
from todoku.core.message import Draft, Leg
from todoku.engine.claim import ClaimCursor
from todoku.store.publish import Publishing, publish
from todoku.store.sqlite.database import file_path

BATCH = 500


class Bench:
    """One database, the store on it, and the bare loop beside it."""

    def __init__(self, url: str, number: int) -> None:
        self.url = url
        self.number = number
        self.box = App(url)
        self.box.migrate()
        self.store = self.box.store

    # ------------------------------------------------------------------------------------- contenders

    def fill(self, number: int, *, keys: int = 0, batch: int = 10_000) -> int:
        """Publish through the product's own builder."""
        database = self.store.database
        for start in range(0, number, batch):
            size = min(batch, number - start)
            drafts = [self.draft(place % keys if keys else None) for place in range(size)]
            self.store.run(publish(Publishing(database.dialect, database.queries, database.now()), drafts))
        return number

    def draft(self, key: int | None) -> Draft:
        """A message of 200 bytes, in a lane if it has a key."""
        lane = None if key is None else lane_id("bench", str(key))
        leg = Leg(destination="bench", queue="bench", lane=lane)
        name = None if key is None else str(key)
        return Draft(id=new_id(), topic="bench.done", type="bench.done", legs=(leg,), key=name, payload=bare.PAYLOAD)

    def drain(self, *, lanes: bool = False) -> int:
        """Claim 500 and settle them through the store, until nothing is left."""
        worker, done = uuid4(), 0
        self.store.leases.register(worker, name="bench", lease=600)
        claiming = ClaimCursor(self.store, worker, ["bench"], monotonic=time.monotonic)
        while claims := claiming.claim_lanes(lanes=50, limit=BATCH) if lanes else claiming.claim(BATCH):
            if (report := self.store.claims.settle([(claim, SUCCEEDED) for claim in claims])).lost or report.stuck:
                raise RuntimeError("the benchmark lost a delivery")
            done += len(claims)
        self.store.leases.end(worker, lost=False)
        return done

    def drain_bare(self) -> int:
        """The same by the bare loop."""
        if self.url.startswith("sqlite"):
            return bare.drain_sqlite(file_path(self.url), time.time_ns() // 1000)
        return bare.drain_postgres(self.url)

    def publish_bare(self, number: int) -> int:
        """Publish by the bare loop."""
        if self.url.startswith("sqlite"):
            return bare.publish_sqlite(file_path(self.url), number, 10_000, time.time_ns() // 1000)
        return bare.publish_postgres(self.url, number, 10_000)

    # ----------------------------------------------------------------------------------------- measures

    def drained(self, drain: Callable[[], int], *, keys: int = 0, number: int = 0) -> Callable[[], float]:
        """A measure: fill, then time how fast it is drained."""
        number = number or self.number

        def measure() -> float:
            self.fill(number, keys=keys)
            return rate(number, drain)

        return measure

    def published(self, fill: Callable[[int], int]) -> Callable[[], float]:
        """A measure: time how fast it is filled, then empty it."""

        def measure() -> float:
            measured = rate(self.number, lambda: fill(self.number))
            self.drain_bare()
            return measured

        return measure

    def empty_claim(self) -> float:
        """The median milliseconds of a full claim that finds nothing."""
        worker = uuid4()
        self.store.leases.register(worker, name="bench", lease=600)
        times = []
        for _ in range(50):
            claiming = ClaimCursor(self.store, worker, ["bench"], monotonic=time.monotonic)
            began = time.perf_counter()
            if claiming.claim(BATCH):
                raise RuntimeError("something was due")
            times.append(time.perf_counter() - began)
        self.store.leases.end(worker, lost=False)
        return statistics.median(times) * 1000


def bars_of_postgres(dsn: str, number: int, rounds: int, scale: int) -> list[Bar]:
    bars = []
    with database(dsn, number) as bench:
        ours, bare_rate = compared(
            rounds, "PostgreSQL publish", ("todoku", bench.published(bench.fill)),
            ("bare", bench.published(bench.publish_bare)),
        )  # fmt: skip
        bars.append(Bar("postgres_publish_many_vs_bare", ours / bare_rate, 0.8))
        bench.store.retention.prune(history_ttl=0.001)
        ours, bare_rate = compared(
            rounds, "PostgreSQL drain", ("todoku", bench.drained(bench.drain)),
            ("bare", bench.drained(bench.drain_bare)),
        )  # fmt: skip
        bars += [
            Bar("postgres_drain_vs_bare", ours / bare_rate, 0.8),
            Bar("postgres_drain_beyond_bare", ours / bare_rate, 1.0, at_most=True),  # more: the bare loop is at fault
            Bar("postgres_drain_per_second", ours, 40_000, "/s"),
        ]
        few, many = compared(
            rounds, "PostgreSQL bare loop", (f"{number // 10:,}", bench.drained(bench.drain_bare, number=number // 10)),
            (f"{number:,}", bench.drained(bench.drain_bare)),
        )  # fmt: skip
        bars.append(Bar("postgres_bare_many_vs_few", many / few, 0.9))
        unordered, ordered = compared(
            rounds, "PostgreSQL lanes", ("unordered", bench.drained(bench.drain)),
            ("1,000 keys", bench.drained(lambda: bench.drain(lanes=True), keys=1000)),
        )  # fmt: skip
        bars.append(Bar("postgres_lanes_vs_unordered", ordered / unordered, 0.7))
    with database(dsn, number) as plain, database(dsn, number) as crowded:
        print(f"  {1_000_000 // scale:,} future deliveries …", flush=True)
        fill_future(crowded, 1_000_000 // scale)
        empty = crowded.empty_claim()
        without, beside = compared(
            rounds, "PostgreSQL future", ("without", plain.drained(plain.drain)),
            ("with a million future", crowded.drained(crowded.drain)),
        )  # fmt: skip
        bars += [
            Bar("postgres_future_vs_without", beside / without, 0.9),
            Bar("postgres_empty_claim_ms", empty, 2.0, "ms", at_most=True),
        ]
    return [*bars, held_snapshot(dsn, number, rounds, scale)]


def held_snapshot(dsn: str, number: int, rounds: int, scale: int) -> Bar:
    """A session of somebody else keeps its snapshot while 200,000 rows are finished, and goes on keeping it."""
    with database(dsn, number) as plain, database(dsn, number) as held, psycopg.connect(held.url) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from todoku_delivery")
        print("  200,000 rows finished under a held snapshot …", flush=True)
        held.fill(200_000 // scale)
        held.drain()
        without, under = compared(
            rounds, "PostgreSQL snapshot", ("without", plain.drained(plain.drain)), ("held", held.drained(held.drain)),
        )  # fmt: skip
    return Bar("postgres_held_snapshot_vs_without", under / without, 0.85)


def fill_future(bench: Bench, number: int) -> None:
    """Deliveries scheduled for tomorrow, in the same place as those that are due."""
    database = bench.store.database
    for start in range(0, number, 20_000):
        size = min(20_000, number - start)
        drafts = [msgspec.structs.replace(bench.draft(None), delay=86_400.0) for _ in range(size)]
        bench.store.run(publish(Publishing(database.dialect, database.queries, database.now()), drafts))


def bars_of_sqlite(number: int, rounds: int) -> list[Bar]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(f"sqlite:///{folder}/bench.db", number)
        print(f"  {bench.store.database.describe()}", flush=True)
        ours, bare_rate = compared(
            rounds, "SQLite publish", ("todoku", bench.published(bench.fill)),
            ("bare", bench.published(bench.publish_bare)),
        )  # fmt: skip
        bars = [Bar("sqlite_publish_many_vs_bare", ours / bare_rate, 0.8)]
        ours, bare_rate = compared(
            rounds, "SQLite drain", ("todoku", bench.drained(bench.drain)), ("bare", bench.drained(bench.drain_bare)),
        )  # fmt: skip
        bars.append(Bar("sqlite_drain_vs_bare", ours / bare_rate, 0.8))
        bench.box.close()
    return bars


@contextmanager
def database(dsn: str, number: int) -> Iterator[Bench]:
    """A fresh, migrated PostgreSQL database."""
    with fresh_database(dsn) as url:
        bench = Bench(url, number)
        try:
            yield bench
        finally:
            bench.box.close()


if __name__ == "__main__":
    run(__doc__, bars_of_sqlite, bars_of_postgres)
