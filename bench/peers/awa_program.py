"""awa (Rust, its Python client): 500 workers a process, COPY into its queue storage, polls every 10 ms."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from awa import AsyncClient

from bench.peers import program
from bench.peers.program import DELAY_SEC, HANDLER_SEC, SLOTS, TEXT, URL, Work, timed_async

WORKERS = 500
FILL = 10_000
KILLED = os.environ.get("BENCH_ROW") == "kill"


@dataclass
class Bench:
    n: int
    text: str


async def prepare() -> None:
    client = AsyncClient(URL)
    await client.migrate()
    await client.install_queue_storage()


async def fill(number: int) -> None:
    client = AsyncClient(URL)
    later = {"run_at": datetime.now(UTC) + timedelta(seconds=DELAY_SEC)} if DELAY_SEC else {}

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            jobs = [Bench(n, TEXT) for n in range(start, min(start + FILL, number))]
            await client.enqueue_many_copy(jobs, queue="bench", **later)

    await timed_async(enqueue())


async def publish(number: int) -> None:
    client = AsyncClient(URL)

    async def one(share: range) -> None:
        for n in share:
            await client.insert(Bench(n, TEXT), queue="bench")

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def caller(number: int) -> None:
    client = AsyncClient(URL)

    async def one(share: range) -> None:
        for n in share:
            async with await client.transaction() as tx:
                await tx.execute("insert into bench_order (n) values ($1::int)", n)
                await tx.insert(Bench(n, TEXT), queue="bench")

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def paced(number: int) -> None:
    client = AsyncClient(URL)
    await program.paced_async(number, lambda n: client.insert(Bench(n, TEXT), queue="bench"))


async def work() -> None:
    counted = Work()
    client = AsyncClient(URL)

    @client.task(Bench, queue="bench")
    async def bench(job: Any) -> None:
        await counted.handle(job.args.n)

    rescue: dict[str, Any] = {}
    if KILLED:
        rescue = {
            "heartbeat_interval_ms": 500, "heartbeat_staleness_ms": 2000, "heartbeat_rescue_interval_ms": 500,
            "leader_election_interval_ms": 500,
        }  # fmt: skip
    await asyncio.to_thread(counted.wait)
    await client.start([("bench", SLOTS if HANDLER_SEC else WORKERS)], poll_interval_ms=10, **rescue)
    await asyncio.Event().wait()


if __name__ == "__main__":
    program.main(
        prepare=lambda: asyncio.run(prepare()),
        fill=lambda n: asyncio.run(fill(n)),
        publish=lambda n: asyncio.run(publish(n)),
        caller=lambda n: asyncio.run(caller(n)),
        paced=lambda n: asyncio.run(paced(n)),
        work=lambda: asyncio.run(work()),
    )
