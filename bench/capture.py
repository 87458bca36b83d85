"""`make bench-capture`: changes of a source through the daemon into todoku, beside bare readers.

Three questions, each on PostgreSQL, `--only` chooses one:

- `rows`: rows a second. Everything is written first, by transactions of ten rows. Then `todoku run` reads it, and its
  rate is that of the messages stored between the first commit and the last, by the database's clock. Source in todoku's
  own database, and on another server. The bare readers (psycopg, the same server, the same rows from a slot of their
  own; bench/capture_bare.py) decode each row to Python values; one stores them as well. In turns, the median counts.
- `commits`: single-row commits a second of four clients, with the capture running and without. The source and its
  clients have one half of the processors, the daemon and todoku's server the other, as on two machines.
- `lag`: from the return of a commit to the start of its handler, beside an outbox that is polled twice a second by
  `updated_at`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psycopg

import todoku
from bench.bars import Bar, compared, report
from bench.capture_bare import decode_all, store_all
from bench.capture_commits import drop_slot, measure_commits
from bench.capture_stage import TABLE, Servers, half_the_processors
from bench.engine import TEXT
from tests.daemon.running import until
from tests.support.postgres import fresh_database, stop_server

ROUNDS = 3
NUMBER = 50_000
A_TRANSACTION = 10
LAGS = 400
POLL_SEC = 0.5
STORED = "select count(*) from todoku_message"
BETWEEN = """
    select count(*),
           count(*) filter (where created_at > first) / extract(epoch from max(created_at) - max(first))::float8
      from todoku_message, (select min(created_at) as first from todoku_message) began"""


# ------------------------------------------------------------------------------------------------------------ rows


def fill(source: str, number: int) -> None:
    """Inserts and updates, ten rows a transaction."""
    with psycopg.connect(source) as connection:
        for first in range(0, number // 2, A_TRANSACTION // 2):
            last = min(first + A_TRANSACTION // 2, number // 2)
            sql = "insert into orders select n, n, %s from generate_series(%s::bigint, %s) n"
            connection.execute(sql, (TEXT, first, last - 1))
            sql = "update orders set amount = amount + 1 where id between %s and %s"
            connection.execute(sql, (first, last - 1))
            connection.commit()


def through_daemon(servers: Servers, number: int, *, own: bool) -> float:
    """The slot exists before the rows; the daemon reads them afterwards."""
    with servers.stage(own=own) as stage:
        with stage.daemon():
            pass
        fill(stage.source, number)
        with stage.daemon() as daemon, psycopg.connect(stage.url, autocommit=True) as looking:
            stored, since = 0, time.monotonic()
            while stored < number:
                ((now,),) = looking.execute(STORED).fetchall()
                if now > stored:
                    stored, since = now, time.monotonic()
                elif time.monotonic() > since + 60 or daemon.process.poll() is not None:
                    raise RuntimeError(f"{now:,} are stored, and nothing happens: {daemon.err[-3000:]}")
                time.sleep(0.1)
            ((done, rate),) = looking.execute(BETWEEN).fetchall()
    assert done == number, f"{done:,} were stored instead of {number:,}"
    return float(rate)


def bare(servers: Servers, number: int, *, stores: bool) -> float:
    """The same rows from a slot of its own, decoded; or stored, too, in the same database."""
    with fresh_database(servers.source) as source:
        if stores:
            box = todoku.App(source)
            box.migrate()
            box.close()
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("create publication bare for table orders")
            connection.execute("select pg_create_logical_replication_slot('bare', 'pgoutput')")
        fill(source, number)
        rate = store_all(source, "bare", number, source) if stores else decode_all(source, "bare", number)
        with psycopg.connect(source, autocommit=True) as connection:
            until(lambda: drop_slot(connection), "the bare slot is free")
    return rate


def measure_rows(servers: Servers, number: int, rounds: int) -> list[Bar]:
    """Both arrangements beside the bare reader."""
    own, other, decoding, storing = compared(
        rounds, f"{number:,} rows",
        ("todoku, own database", lambda: through_daemon(servers, number, own=True)),
        ("todoku, another server", lambda: through_daemon(servers, number, own=False)),
        ("bare reader that only decodes", lambda: bare(servers, number, stores=False)),
        ("bare reader that decodes and stores", lambda: bare(servers, number, stores=True)),
    )  # fmt: skip
    print(
        f"rows a second: {own:,.0f} own database, {other:,.0f} another server;"
        f" bare: {decoding:,.0f} decoding, {storing:,.0f} decoding and storing"
    )
    return [
        Bar("capture_own_vs_decoding", own / decoding, 0.5),
        Bar("capture_other_vs_decoding", other / decoding, 0.5),
        Bar("capture_own_vs_storing", own / storing, 0.5),
    ]


# ------------------------------------------------------------------------------------------------------------- lag


def lags(source: str, number: int, started: Callable[[], dict[int, float]]) -> list[float]:
    """Milliseconds from the return of each commit to its start, sorted; commits come after random gaps."""
    gaps, committed = random.Random(1), {}
    with psycopg.connect(source) as connection:
        for place in range(number):
            time.sleep(gaps.uniform(0, 0.05))
            connection.execute("insert into orders (id, amount, text) values (%s, 1, %s)", (place, TEXT))
            connection.commit()
            committed[place] = time.time()
    found = until(lambda: have if len(have := started()) >= number else None, "the last change to start")
    return sorted(max(0.0, found[place] - at) * 1000 for place, at in committed.items())


def captured_lags(servers: Servers, number: int, *, own: bool) -> list[float]:
    notes = Path(tempfile.mkstemp(prefix="todoku-bench-lag-")[1])

    def started() -> dict[int, float]:
        lines = [line.split() for line in notes.read_text().splitlines()]
        return {int(id): float(at) for id, at in lines}

    with servers.stage(own=own, started=notes) as stage, stage.daemon():
        found = lags(stage.source, number, started)
    notes.unlink()
    return found


def polled_lags(servers: Servers, number: int) -> list[float]:
    """What many write by hand: rows that changed since the last look, twice a second."""
    seen: dict[int, float] = {}
    over = threading.Event()

    def poll(source: str) -> None:
        last: datetime | str = "-infinity"
        with psycopg.connect(source, autocommit=True) as connection:
            while not over.wait(POLL_SEC):
                sql = "select id, updated_at from orders where updated_at > %s order by updated_at"
                for id, at in connection.execute(sql, (last,)).fetchall():
                    seen[id], last = time.time(), at

    with fresh_database(servers.source) as source:
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("create index on orders (updated_at)")
        thread = threading.Thread(target=poll, args=(source,))
        thread.start()
        try:
            return lags(source, number, lambda: dict(seen))
        finally:
            over.set()
            thread.join()


def measure_lag(servers: Servers, number: int) -> list[Bar]:
    found = {
        "own database": captured_lags(servers, number, own=True),
        "another server": captured_lags(servers, number, own=False),
        "polling outbox, every 0.5 s": polled_lags(servers, number),
    }
    for name, took in found.items():
        p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
        print(f"lag from commit to the start of the handler, {name}: p50 {p50:,.1f} ms, p99 {p99:,.1f} ms")
    ours, theirs = (found[name][int(number * 0.99)] for name in ("another server", "polling outbox, every 0.5 s"))
    return [Bar("lag_p99_vs_polling", ours / theirs, 1.0, at_most=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("rows", "commits", "lag"), help="one question")
    parser.add_argument("--number", type=int, default=NUMBER, help=f"how many rows ({NUMBER:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="each so often, in turn; the median counts (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    options = parser.parse_args()
    print(f"  load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores", flush=True)
    halves = half_the_processors()
    questions: dict[str, Callable[[Servers], list[Bar]]] = {
        "rows": lambda servers: measure_rows(servers, options.number, options.rounds),
        "commits": lambda servers: measure_commits(servers, options.rounds, halves),
        "lag": lambda servers: measure_lag(servers, LAGS),
    }
    bars: list[Bar] = []
    for name in [options.only] if options.only else questions:
        home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
        try:
            bars += questions[name](Servers(home, halves if name == "commits" else None))
        finally:
            stop_server(home)
    if options.json:
        print(json.dumps({"bars": {bar.name: [bar.measured, bar.required, bar.ok] for bar in bars}}))
        return
    report(bars)


if __name__ == "__main__":
    main()
