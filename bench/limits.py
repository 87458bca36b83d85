"""`make bench-limits`: a limit of 2 per key, over 8 worker processes, with more to do than may run.

One hot key and 15 others, 32 slots: exactly as many as all keys together may use. What counts: how many of the hot key
ran at once, at most (it must be exactly 2), and how busy the others were meanwhile: the time their attempts ran, as a
part of the time their limits would have allowed. `--quick` is a third of the work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.running import SERVER
from tests.support import limited
from tests.support.limited import Span, overlap, spans
from tests.support.postgres import fresh_database, server_dsn, stop_server
from todoku.app import App

PROCESSES, SLOTS, KEYS, SECONDS = 8, 4, 15, 0.5
LIMIT = 2
TARGET = 0.8
PATIENCE = 180.0


def measured(url: str, number: int) -> dict[str, list[Span]]:
    """When the attempts of each key ran: `number` of each, all stored before the first begins."""
    with tempfile.TemporaryDirectory(prefix="todoku-bench-") as notes:
        os.environ |= {limited.URL: url, limited.NOTES: notes, "TODOKU_CONCURRENCY": str(SLOTS)}
        spawn = multiprocessing.get_context("spawn")
        together = spawn.Barrier(PROCESSES + 1)
        processes = [spawn.Process(target=limited.work, args=(together,), daemon=True) for _ in range(PROCESSES)]
        box, keyed = limited.declared(url)
        box.migrate()
        keys = ["hot", *(f"other {place}" for place in range(KEYS))]
        box.enqueue_many([keyed.using(key=key).call(SECONDS) for _ in range(number) for key in keys], tx=None)
        for process in processes:
            process.start()
        together.wait(PATIENCE)
        _until_done(box, number * len(keys))
        for process in processes:
            process.kill()
            process.join()
        box.close()
        return spans(Path(notes))[0]


def _until_done(box: App, number: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while box.store.statistics.counts().succeeded < number and time.monotonic() < deadline:
        time.sleep(0.2)


def busy(some: list[Span]) -> float:
    """The part of the time its limit allowed that a key ran; the last attempts, which are alone, do not count."""
    ends = sorted(ended for _, ended in some)[: 1 - LIMIT or None]
    first, last = min(began for began, _ in some), ends[-1]
    ran = sum(min(ended, last) - began for began, ended in some if began < last)
    return ran / (LIMIT * (last - first))


def report(name: str, found: dict[str, list[Span]]) -> bool:
    """One line; whether both targets were reached."""
    hot = overlap(found["key hot"])
    others = [some for what, some in found.items() if what != "key hot"]
    share = sum(map(busy, others)) / len(others)
    fine = hot == LIMIT and share >= TARGET
    most = max(map(overlap, others))
    print(
        f"{name:<12} hot key at most {hot} at once (limit {LIMIT}), {busy(found['key hot']):.2f} busy; "
        f"{len(others)} other keys at most {most}, {share:.2f} busy (target {TARGET}): {'ok' if fine else 'MISSED'}",
        flush=True,
    )
    return fine


def main() -> None:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the work")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one database")
    options = parser.parse_args()
    number, fine = 10 if options.quick else 30, True
    home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
    if options.only != "postgres":
        fine &= report("SQLite", measured(f"sqlite:///{home}/limits.db", number))
    if options.only != "sqlite":
        try:
            with fresh_database(server_dsn(home, SERVER)) as url:
                fine &= report("PostgreSQL", measured(url, number))
        finally:
            stop_server(home)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
