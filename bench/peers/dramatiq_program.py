"""Dramatiq (Python) on Redis: 8 threads a process, the middleware for retries only, no results.

`dramatiq_queue_prefetch`, which it reads from its environment, is in the catalogue.
"""

from __future__ import annotations

import logging
import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, TEXT, URL, Work, by_threads, timed

QUEUE = "bench"
THREADS = 8
# In the row of the kill: dead processes are looked for at every command, after two seconds without a sign of life.
RECOVERY = {"heartbeat_timeout": 2000, "maintenance_chance": 1_000_000} if os.environ.get("BENCH_ROW") == "kill" else {}
COUNTING: list[Work] = []
"""What counts in this process; empty where it only enqueues."""

broker = RedisBroker(url=URL, middleware=[Retries()], **RECOVERY)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def bench(n: int, text: str) -> None:  # noqa: ARG001 - the payload that all peers have
    COUNTING[0].handle_blocking(n)


def prepare() -> None:
    """Redis needs no schema."""


def fill(number: int) -> None:
    """It has no bulk call (a group sends one by one, too): the loop that its users would write."""

    def enqueue() -> None:
        for n in range(number):
            bench.send(n, TEXT)

    timed(enqueue)


def publish(number: int) -> None:
    def one(share: range) -> None:
        for n in share:
            bench.send(n, TEXT)

    by_threads(number, one)


def work() -> None:
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    COUNTING.append(Work())
    worker = dramatiq.Worker(broker, queues={QUEUE}, worker_threads=SLOTS if HANDLER_SEC else THREADS)
    broker.client.ping()
    COUNTING[0].wait()
    worker.start()
    program.rest()


if __name__ == "__main__":
    program.main(
        prepare=prepare,
        fill=fill,
        publish=publish,
        paced=lambda n: program.paced(n, lambda m: bench.send(m, TEXT)),
        work=work,
    )
