"""Huey (Python): on SQLite with synchronous=FULL, or on Redis; BENCH_URL says which. No results are stored."""

from __future__ import annotations

import logging

from huey import Huey, RedisHuey, SqliteHuey

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, TEXT, URL, Work, by_threads, timed

REDIS = URL.startswith("redis:")
POLL_SEC = 0.01
"""SQLite has to be asked; Redis blocks until there is a job."""
COUNTING: list[Work] = []
"""What counts in this process; empty where it only enqueues."""


def queue() -> Huey:
    if REDIS:
        return RedisHuey("bench", url=URL, results=False)
    return SqliteHuey("bench", filename=URL, fsync=True, results=False, timeout=30)


huey = queue()


@huey.task()
def bench(n: int, text: str) -> None:  # noqa: ARG001 - the payload that all peers have
    COUNTING[0].handle_blocking(n)


def prepare() -> None:
    """SqliteHuey has made its tables by now; Redis needs none."""


def fill(number: int) -> None:
    """It has no bulk call: the loop that its users would write."""

    def enqueue() -> None:
        for n in range(number):
            bench(n, TEXT)

    timed(enqueue)


def publish(number: int) -> None:
    def one(share: range) -> None:
        for n in share:
            bench(n, TEXT)

    by_threads(number, one)


def work() -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)  # otherwise two lines a job
    COUNTING.append(Work())
    consumer = huey.create_consumer(
        workers=SLOTS if HANDLER_SEC else 1, worker_type="thread", periodic=False,
        initial_delay=POLL_SEC, max_delay=POLL_SEC, backoff=1.0, check_worker_health=False,
    )  # fmt: skip
    huey.pending_count()  # connects
    COUNTING[0].wait()
    consumer.start()
    program.rest()


if __name__ == "__main__":
    program.main(
        prepare=prepare,
        fill=fill,
        publish=publish,
        paced=lambda n: program.paced(n, lambda m: bench(m, TEXT)),
        work=work,
    )
