"""A worker inside the application: beside its code in the event loop, or only until nothing is due."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from todoku.engine.twins import refuse_in_event_loop
from todoku.engine.worker.worker import Worker


@asynccontextmanager
async def run_beside(worker: Worker) -> AsyncIterator[Worker]:
    """Runs a worker in this event loop while the block runs, then drains it."""
    running = asyncio.create_task(worker.run(), name="todoku worker")
    try:
        yield worker
    finally:
        worker.drain()
        await running


def run_until_idle(worker: Worker) -> int:
    """Runs all due deliveries in a new event loop. Returns how many attempts were settled."""
    refuse_in_event_loop("box.adrain")
    with _freeze_heap():
        return asyncio.run(worker.run(until_idle=True))


@contextmanager
def _freeze_heap() -> Iterator[None]:
    """Excludes existing objects from garbage collection while the block runs.

    The caller waits for the drain, and one full collection of a program's modules costs as much as a thousand jobs.
    """
    if gc.get_freeze_count():  # the application has frozen objects itself; unfreezing would undo that
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
