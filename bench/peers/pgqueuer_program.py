"""PgQueuer (Python, asyncpg): batches of 1000, uvloop; its durable tables, which are its default."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import program
from bench.peers.program import DELAY_SEC, HANDLER_SEC, SLOTS, URL, Work, payload, timed_async

BATCH = 1000
FILL = 10_000
HANDLERS_BATCH = 50
"""Where handlers take time: a batch is at most half of what may run at once."""


def encoded(n: int) -> bytes:
    return json.dumps(payload(n)).encode()


async def prepare() -> None:
    line = await asyncpg.connect(URL)
    await Queries(AsyncpgDriver(line)).install()
    await line.close()


async def fill(number: int) -> None:
    line = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(line))
    later = timedelta(seconds=DELAY_SEC)

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            some = range(start, min(start + FILL, number))
            await queries.enqueue(
                ["bench"] * len(some), [encoded(n) for n in some], [0] * len(some),
                [later] * len(some) if DELAY_SEC else None,
            )  # fmt: skip

    await timed_async(enqueue())
    await line.close()


async def publish(number: int) -> None:
    lines = [await asyncpg.connect(URL) for _ in range(program.PUBLISHERS)]

    async def one(share: range) -> None:
        queries = Queries(AsyncpgDriver(lines[share.start]))
        for n in share:
            await queries.enqueue("bench", encoded(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def caller(number: int) -> None:
    lines = [await asyncpg.connect(URL) for _ in range(program.PUBLISHERS)]

    async def one(share: range) -> None:
        line = lines[share.start]
        queries = Queries(AsyncpgDriver(line))
        for n in share:
            async with line.transaction():
                await line.execute("insert into bench_order (n) values ($1)", n)
                await queries.enqueue("bench", encoded(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def paced(number: int) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
    await program.paced_async(number, lambda n: queries.enqueue("bench", encoded(n)))


async def work() -> None:
    counted = Work()
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @pgq.entrypoint("bench")
    async def bench(job: Job) -> None:
        await counted.handle(json.loads(job.payload or b"{}")["n"])

    await asyncio.to_thread(counted.wait)
    if HANDLER_SEC:
        killed = os.environ.get("BENCH_ROW") == "kill"
        await pgq.run(
            batch_size=min(HANDLERS_BATCH, SLOTS // 2), max_concurrent_tasks=SLOTS,
            heartbeat_timeout=timedelta(seconds=2 if killed else 30),
            dequeue_timeout=timedelta(seconds=1 if killed else 30),
        )  # fmt: skip
    else:
        await pgq.run(batch_size=BATCH)


if __name__ == "__main__":
    program.main(
        prepare=lambda: uvloop.run(prepare()),
        fill=lambda n: uvloop.run(fill(n)),
        publish=lambda n: uvloop.run(publish(n)),
        caller=lambda n: uvloop.run(caller(n)),
        paced=lambda n: uvloop.run(paced(n)),
        work=lambda: uvloop.run(work()),
    )
