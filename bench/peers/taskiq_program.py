"""taskiq (Python) on a stream of Redis: 200 tasks at once in a process, uvloop, no results."""

from __future__ import annotations

import asyncio
import logging

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers import program
from bench.peers.program import HANDLER_SEC, SLOTS, TEXT, URL, Work, timed_async

AT_ONCE = 200
FILL = 50
"""How many are sent at once by `fill`: it has no bulk call."""
COUNTING: list[Work] = []
"""What counts in this process; empty where it only enqueues."""

broker = RedisStreamBroker(URL, queue_name="bench", consumer_group_name="bench", xread_count=AT_ONCE)


@broker.task(task_name="bench")
async def bench(n: int, text: str) -> None:  # noqa: ARG001 - the payload that all peers have
    await COUNTING[0].handle(n)


async def prepare() -> None:
    """The group has to exist before the first message: it reads what comes after it."""
    await broker.startup()
    await broker.shutdown()


async def fill(number: int) -> None:
    await broker.startup()

    async def enqueue() -> None:
        for start in range(0, number, FILL):
            await asyncio.gather(*(bench.kiq(n, TEXT) for n in range(start, min(start + FILL, number))))

    await timed_async(enqueue())


async def publish(number: int) -> None:
    await broker.startup()

    async def one(share: range) -> None:
        for n in share:
            await bench.kiq(n, TEXT)

    async def everything() -> None:
        await asyncio.gather(*map(one, program.shares(number)))

    await timed_async(everything())


async def paced(number: int) -> None:
    await broker.startup()
    await program.paced_async(number, lambda n: bench.kiq(n, TEXT))


async def work() -> None:
    logging.getLogger("taskiq").setLevel(logging.ERROR)
    COUNTING.append(Work())
    broker.is_worker_process = True
    await broker.startup()
    await asyncio.to_thread(COUNTING[0].wait)
    at_once = SLOTS if HANDLER_SEC else AT_ONCE
    await run_receiver_task(broker, max_async_tasks=at_once, max_prefetch=at_once, validate_params=False)


if __name__ == "__main__":
    program.main(
        prepare=lambda: uvloop.run(prepare()),
        fill=lambda n: uvloop.run(fill(n)),
        publish=lambda n: uvloop.run(publish(n)),
        paced=lambda n: uvloop.run(paced(n)),
        work=lambda: uvloop.run(work()),
    )
