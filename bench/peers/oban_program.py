"""Oban for Python (psycopg, uvloop): a limit of 200. Finished jobs are kept for a day, as by default."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from bench.peers import program
from bench.peers.program import DELAY_SEC, HANDLER_SEC, SLOTS, URL, Work, payload, timed_async

LIMIT = 200
FILL = 1000
KILLED = os.environ.get("BENCH_ROW") == "kill"

counted = Work()


@worker(queue="bench")
class _Bench:
    async def process(self, job: Any) -> None:
        await counted.handle(job.args["n"])


Bench: Any = _Bench
"""With what the decorator adds: `new`."""


async def prepare() -> None:
    pool = await Oban.create_pool(URL)
    await install(pool)
    await pool.close()


async def fill(number: int) -> None:
    oban = Oban(pool=await Oban.create_pool(URL))
    later = {"scheduled_in": DELAY_SEC} if DELAY_SEC else {}

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            some = range(start, min(start + FILL, number))
            await oban.enqueue_many([Bench.new(payload(n), **later) for n in some])

    await timed_async(enqueue())


async def publish(number: int) -> None:
    size = program.PUBLISHERS
    oban = Oban(pool=await Oban.create_pool(URL, min_size=size, max_size=size))

    async def one(share: range) -> None:
        for n in share:
            await oban.enqueue(Bench.new(payload(n)))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def caller(number: int) -> None:
    size = program.PUBLISHERS
    pool = await Oban.create_pool(URL, min_size=size, max_size=size)
    oban = Oban(pool=pool)

    async def one(share: range) -> None:
        for n in share:
            async with pool.connection() as line:
                await line.execute("insert into bench_order (n) values (%s)", (n,))
                await oban.enqueue(Bench.new(payload(n)), conn=line)

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def paced(number: int) -> None:
    oban = Oban(pool=await Oban.create_pool(URL))
    await program.paced_async(number, lambda n: oban.enqueue(Bench.new(payload(n))))


async def work() -> None:
    pool = await Oban.create_pool(URL)
    rescue = {"lifeline": {"interval": 1.0}, "refresher": {"interval": 1.0, "max_age": 2.0}} if KILLED else {}
    oban = Oban(pool=pool, queues={"bench": SLOTS if HANDLER_SEC else LIMIT}, **rescue)
    await asyncio.to_thread(counted.wait)
    async with oban:
        await asyncio.Event().wait()


if __name__ == "__main__":
    program.main(
        prepare=lambda: uvloop.run(prepare()),
        fill=lambda n: uvloop.run(fill(n)),
        publish=lambda n: uvloop.run(publish(n)),
        caller=lambda n: uvloop.run(caller(n)),
        paced=lambda n: uvloop.run(paced(n)),
        work=lambda: uvloop.run(work()),
    )
