"""DBOS (Python, SQLAlchemy): a queue that is polled every 10 ms, 100 workflows a process. Finished ones are kept."""

from __future__ import annotations

import os
from collections.abc import Callable

import sqlalchemy as sa
from dbos import DBOS, DBOSClient

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, TEXT, URL, Work, by_threads, timed

CONCURRENCY = 100
POLL_SEC = 0.01
FILL = 500
ENQUEUE = {"queue_name": "bench", "workflow_name": "bench"}
ADDRESS = URL.replace("postgresql://", "postgresql+psycopg://")

counted = Work()


@DBOS.workflow(name="bench")
async def bench(n: int, text: str) -> None:  # noqa: ARG001 - part of the payload
    await counted.handle(n)


def launched(concurrency: int) -> None:
    DBOS(config={
        "name": "bench", "system_database_url": ADDRESS, "log_level": "ERROR", "executor_id": f"bench-{os.getpid()}",
        "application_version": "1", "sys_db_pool_size": 20,
    })  # fmt: skip
    DBOS.launch()
    DBOS.register_queue(
        "bench", worker_concurrency=concurrency, polling_interval_sec=POLL_SEC, on_conflict="always_update"
    )


def prepare() -> None:
    launched(CONCURRENCY)
    DBOS.destroy()


def client(size: int = 5) -> DBOSClient:
    return DBOSClient(system_database_url=ADDRESS, system_database_pool_size=size)


def fill(number: int) -> None:
    """It has no bulk call: one statement each, 500 a transaction of the caller."""
    enqueuing = client()
    timed(lambda: in_transactions(number, lambda line, n: enqueuing.enqueue_in_transaction(line, ENQUEUE, n, TEXT)))


def in_transactions(number: int, enqueue: Callable[[sa.Connection, int], object]) -> None:
    """Enqueue so many by a call of each, 500 a transaction."""
    engine = sa.create_engine(ADDRESS)
    for start in range(0, number, FILL):
        with engine.begin() as line:
            for n in range(start, min(start + FILL, number)):
                enqueue(line, n)


def publish(number: int) -> None:
    enqueuing = client(program.PUBLISHERS)

    def one(share: range) -> None:
        for n in share:
            enqueuing.enqueue(ENQUEUE, n, TEXT)

    by_threads(number, one)


def caller(number: int) -> None:
    enqueuing = client()
    engine = sa.create_engine(ADDRESS, pool_size=program.PUBLISHERS)
    insert = sa.text("insert into bench_order (n) values (:n)")

    def one(share: range) -> None:
        for n in share:
            with engine.begin() as line:
                line.execute(insert, {"n": n})
                enqueuing.enqueue_in_transaction(line, ENQUEUE, n, TEXT)

    by_threads(number, one)


def paced(number: int) -> None:
    enqueuing = client()
    program.paced(number, lambda n: enqueuing.enqueue(ENQUEUE, n, TEXT))


def work() -> None:
    counted.wait()
    launched(SLOTS if HANDLER_SEC else CONCURRENCY)
    program.rest()


if __name__ == "__main__":
    program.main(prepare=prepare, fill=fill, publish=publish, caller=caller, paced=paced, work=work)
