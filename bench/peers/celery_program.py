"""Celery (Python) on Redis: one process is one worker with the pool `solo`, with threads where handlers wait."""

from __future__ import annotations

import os
import threading

from celery import Celery
from celery.signals import worker_ready

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, TEXT, URL, Work, by_threads, timed

QUEUE = "bench"
WAITING = "waiting"
"""A queue that nothing is ever put into: the worker runs, connected, before it is given the other one."""
NAME = f"bench-{os.getpid()}@localhost"
COUNTING: list[Work] = []
"""What counts in this process; empty where it only enqueues."""

app = Celery("bench", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_default_queue=WAITING,
    worker_prefetch_multiplier=1 if HANDLER_SEC else 64,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,  # the frame reads it
    broker_connection_retry_on_startup=True,
    # By default a job is acknowledged before it runs, and lost with its process. In the row of the kill it is not: it
    # comes back when it was not acknowledged for an hour, which is the default, and bounds how long a job may take.
    task_acks_late=os.environ.get("BENCH_ROW") == "kill",
)


@app.task(name="bench", queue=QUEUE)
def bench(n: int, text: str) -> None:  # noqa: ARG001 - the payload that all peers have
    COUNTING[0].handle_blocking(n)


def prepare() -> None:
    """Redis needs no schema."""


def fill(number: int) -> None:
    """It has no bulk call: the loop that its users would write, on one connection."""

    def enqueue() -> None:
        with app.producer_or_acquire() as producer:
            for n in range(number):
                bench.apply_async((n, TEXT), producer=producer)

    timed(enqueue)


def publish(number: int) -> None:
    def one(share: range) -> None:
        with app.producer_or_acquire() as producer:
            for n in share:
                bench.apply_async((n, TEXT), producer=producer)

    by_threads(number, one)


def work() -> None:
    COUNTING.append(Work())

    def obey() -> None:
        COUNTING[0].wait()
        app.control.add_consumer(QUEUE, destination=[NAME])

    @worker_ready.connect(weak=False)
    def ready(**_: object) -> None:
        threading.Thread(target=obey, daemon=True).start()

    worker = app.Worker(
        hostname=NAME, queues=[WAITING], pool="threads" if HANDLER_SEC else "solo",
        concurrency=SLOTS if HANDLER_SEC else 1, loglevel="ERROR", logfile=os.devnull,
        without_gossip=True, without_mingle=True, without_heartbeat=True, quiet=True,
    )  # fmt: skip
    worker.start()


if __name__ == "__main__":
    program.main(
        prepare=prepare,
        fill=fill,
        publish=publish,
        paced=lambda n: program.paced(n, lambda m: bench.delay(m, TEXT)),
        work=work,
    )
