"""A worker inside somebody's own program: beside their event loop, or just until nothing is due."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from todoku.engine.twins import refuse_in_event_loop
from todoku.engine.worker.worker import Worker


@asynccontextmanager
async def beside(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker in this event loop while the block runs, then drain it."""
    running = asyncio.create_task(worker.run(), name="todoku worker")
    try:
        yield worker
    finally:
        worker.drain()
        await running


def drained(worker: Worker) -> int:
    """Run what is due, in an event loop of its own, and return how many attempts were settled."""
    refuse_in_event_loop("box.adrain")
    with _what_is_here_stays():
        return asyncio.run(worker.run(until_idle=True))


@contextmanager
def _what_is_here_stays() -> Iterator[None]:
    """Whoever drains waits for it, so what was there before is not looked through for garbage meanwhile: one full
    collection of a program's modules costs as much as a thousand jobs."""
    if gc.get_freeze_count():  # somebody else's, and theirs to end
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
