"""Absurd (Python SDK, psycopg), its schema by its own `absurdctl`. A worker has one connection: several a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, URL, Work, payload, timed_async

WORKERS, BATCH = 4, 50
POLL_SEC = 0.01
FILL = 1000
CLAIM_SEC = 2 if os.environ.get("BENCH_ROW") == "kill" else 120

counted = Work()


def prepare() -> None:
    control = str(Path(sys.executable).with_name("absurdctl"))
    for command in (["init"], ["create-queue", "bench"]):
        subprocess.run(
            [control, command[0], "--database", URL, *command[1:]], check=True, stdout=sys.stderr, stderr=sys.stderr
        )


def client(line: Any) -> AsyncAbsurd:
    absurd = AsyncAbsurd(line, queue_name="bench")

    @absurd.register_task(name="bench")
    async def bench(params: dict[str, Any], _context: Any) -> None:
        await counted.handle(params["n"])

    return absurd


async def connected(*, autocommit: bool = True) -> Any:
    return await psycopg.AsyncConnection.connect(URL, autocommit=autocommit)


async def fill_by(make: Callable[[Any], AsyncAbsurd], number: int) -> None:
    """It has no bulk call: one statement each, 1,000 a transaction."""
    line = await connected()
    absurd = make(line)

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            async with line.transaction():
                for n in range(start, min(start + FILL, number)):
                    await absurd.spawn("bench", payload(n))

    await timed_async(enqueue())


async def publish(number: int) -> None:
    clients = [client(await connected()) for _ in range(program.PUBLISHERS)]

    async def one(share: range) -> None:
        for n in share:
            await clients[share.start].spawn("bench", payload(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def caller(number: int) -> None:
    lines = [await connected() for _ in range(program.PUBLISHERS)]

    async def one(share: range) -> None:
        line = lines[share.start]
        absurd = client(line)
        for n in share:
            async with line.transaction():
                await line.execute("insert into bench_order (n) values (%s)", (n,))
                await absurd.spawn("bench", payload(n))

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def paced(number: int) -> None:
    absurd = client(await connected())
    await program.paced_async(number, lambda n: absurd.spawn("bench", payload(n)))


async def work() -> None:
    clients = [client(await connected()) for _ in range(WORKERS)]
    batch = SLOTS // WORKERS if HANDLER_SEC else BATCH
    await work_with(clients, batch)


async def work_with(clients: Sequence[AsyncAbsurd], batch: int) -> None:
    """A worker for each client, which runs so many at once."""
    await asyncio.to_thread(counted.wait)
    await asyncio.gather(*(
        absurd.start_worker(
            worker_id=f"{os.getpid()}-{place}", concurrency=batch, poll_interval=POLL_SEC, claim_timeout=CLAIM_SEC
        )
        for place, absurd in enumerate(clients)
    ))  # fmt: skip


if __name__ == "__main__":
    program.main(
        prepare=prepare,
        fill=lambda n: asyncio.run(fill_by(client, n)),
        publish=lambda n: asyncio.run(publish(n)),
        caller=lambda n: asyncio.run(caller(n)),
        paced=lambda n: asyncio.run(paced(n)),
        work=lambda: asyncio.run(work()),
    )
