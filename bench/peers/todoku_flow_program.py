"""todoku as a program of `make bench-flow`: runs of ten steps that do nothing, started in bulk, run by workers."""

from __future__ import annotations

import os

from bench.peers import program
from bench.peers.program import SLOTS, URL, Work, timed

os.environ.setdefault("TODOKU_CONCURRENCY", str(SLOTS))

from todoku.app import App
from todoku.engine.embedded_worker import run_until_idle
from todoku.engine.flows.flow import Flow

STEPS = 10
WARM = 100
BATCH = 10_000

box = App(URL)
work = Work()


async def nothing(number: int) -> int:
    """A step that does nothing."""
    return number


@box.workflow(queue="bench")
async def bench(ctx: Flow, n: int) -> int:
    """Ten steps, one after the other."""
    total = 0
    for number in range(STEPS):
        total += await ctx.step(nothing, number)
    await work.handle(n)
    return total


def fill(number: int) -> None:
    """`box.enqueue_many`, 10,000 a transaction."""

    def start() -> None:
        for first in range(0, number, BATCH):
            box.enqueue_many([bench.call(n) for n in range(first, min(first + BATCH, number))], tx=None)

    timed(start)


def run() -> None:
    """One worker process that ends its work when nothing is due."""
    box.enqueue_many([bench.call(n) for n in range(WARM)], tx=None)
    box.drain()
    worker = box.worker()
    work.wait(work.done)
    run_until_idle(worker)
    program.rest()


if __name__ == "__main__":
    program.main(prepare=box.migrate, fill=fill, work=run)
