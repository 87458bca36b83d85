"""Absurd as a program of `make bench-flow`: tasks of ten steps that do nothing, BENCH_SLOTS at once in a process."""

from __future__ import annotations

import asyncio
from typing import Any

from absurd_sdk import AsyncAbsurd

from bench.peers import absurd_program, program
from bench.peers.absurd_program import connected, counted, fill_by, work_with

STEPS = 10


def client(line: Any) -> AsyncAbsurd:
    """A client that knows the task."""
    absurd = AsyncAbsurd(line, queue_name="bench")

    @absurd.register_task(name="bench")
    async def bench(params: dict[str, Any], context: Any) -> int:
        total = 0
        for number in range(STEPS):
            total += await context.step("nothing", nothing(number))
        await counted.handle(params["n"])
        return total

    return absurd


def nothing(number: int) -> Any:
    """A step that does nothing."""

    async def step() -> int:
        return number

    return step


async def work() -> None:
    """Workers that share the slots of the process."""
    clients = [client(await connected()) for _ in range(absurd_program.WORKERS)]
    await work_with(clients, program.SLOTS // absurd_program.WORKERS)


if __name__ == "__main__":
    program.main(
        prepare=absurd_program.prepare,
        fill=lambda n: asyncio.run(fill_by(client, n)),
        work=lambda: asyncio.run(work()),
    )
