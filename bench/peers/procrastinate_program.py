"""Procrastinate (Python, psycopg): 20 jobs at once; more made it no faster. Finished jobs are kept, as by default."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import procrastinate
import psycopg

from bench.peers import program
from bench.peers.program import DELAY_SEC, HANDLER_SEC, SLOTS, URL, Work, payload, timed_async

CONCURRENCY = 20
FILL = 1000

counted = Work()
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=program.PUBLISHERS, max_size=program.PUBLISHERS + 8)
)


@app.task(name="bench", queue="bench")
async def bench(n: int, text: str) -> None:  # noqa: ARG001 - part of the payload
    await counted.handle(n)


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def fill(number: int) -> None:
    at = datetime.now(UTC) + timedelta(seconds=DELAY_SEC) if DELAY_SEC else None

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            some = range(start, min(start + FILL, number))
            await bench.configure(schedule_at=at).batch_defer_async(*(payload(n) for n in some))

    async with app.open_async():
        await timed_async(enqueue())


async def publish(number: int) -> None:
    async def one(share: range) -> None:
        for n in share:
            await bench.defer_async(**payload(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    async with app.open_async():
        await timed_async(everything())


async def caller(number: int) -> None:
    lines = [await psycopg.AsyncConnection.connect(URL) for _ in range(program.PUBLISHERS)]

    async def one(share: range) -> None:
        line = lines[share.start]
        for n in share:
            async with line.transaction():
                await line.execute("insert into bench_order (n) values (%s)", (n,))
                await bench.configure(connection=line).defer_async(**payload(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    async with app.open_async():
        await timed_async(everything())


async def paced(number: int) -> None:
    async with app.open_async():
        await program.paced_async(number, lambda n: bench.defer_async(**payload(n)))


async def work() -> None:
    async with app.open_async():
        await asyncio.to_thread(counted.wait)
        await app.run_worker_async(queues=["bench"], concurrency=SLOTS if HANDLER_SEC else CONCURRENCY)


if __name__ == "__main__":
    program.main(
        prepare=lambda: asyncio.run(prepare()),
        fill=lambda n: asyncio.run(fill(n)),
        publish=lambda n: asyncio.run(publish(n)),
        caller=lambda n: asyncio.run(caller(n)),
        paced=lambda n: asyncio.run(paced(n)),
        work=lambda: asyncio.run(work()),
    )
