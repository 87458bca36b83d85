"""DBOS as a program of `make bench-flow`: workflows of ten steps that do nothing, from a queue, BENCH_SLOTS at once."""

from __future__ import annotations

from dbos import DBOS

from bench.peers import dbos_program, program
from bench.peers.dbos_program import client, counted, in_transactions, launched
from bench.peers.program import SLOTS, timed

STEPS = 10
ENQUEUE = {"queue_name": "bench", "workflow_name": "bench_flow"}


@DBOS.step(name="nothing")
async def nothing(number: int) -> int:
    """A step that does nothing."""
    return number


@DBOS.workflow(name="bench_flow")
async def bench_flow(n: int) -> int:
    """Ten steps, one after the other."""
    total = 0
    for number in range(STEPS):
        total += await nothing(number)
    await counted.handle(n)
    return total


def fill(number: int) -> None:
    """As its fill of plain jobs."""
    enqueuing = client()
    timed(lambda: in_transactions(number, lambda line, n: enqueuing.enqueue_in_transaction(line, ENQUEUE, n)))


def work() -> None:
    counted.wait()
    launched(SLOTS)
    program.rest()


if __name__ == "__main__":
    program.main(prepare=dbos_program.prepare, fill=fill, work=work)
