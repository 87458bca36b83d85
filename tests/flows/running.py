"""A worker beside the test, in a thread of its own, and what its threads are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import todoku
from todoku.engine.worker.worker import Worker


@contextmanager
def working(box: todoku.App) -> Iterator[Worker]:
    """Runs a worker while the block runs, then drains it."""
    worker = box.worker()
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield worker
    finally:
        worker.drain()
        thread.join(60)
        assert not thread.is_alive()


def threads(name: str) -> int:
    """How many threads of this kind there are: `workflow`, `step`."""
    return sum(thread.name == f"todoku {name}" for thread in threading.enumerate())
