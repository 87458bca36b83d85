"""Which deliveries a worker process may have started, in memory that outlives the process.

After kill -9 it would be unknown which deliveries had started, and all that the worker held would be suspects, which
run alone (H6). A supervisor that shares this memory with its child knows: unstarted deliveries are given back.
"""

from __future__ import annotations

import mmap
import os
from itertools import count
from typing import Final

_CELLS: Final = 4096
"""Attempts that may run at the same time."""

_RING: Final = 8192
"""The last attempts that ended: many more than can wait to be settled."""

SIZE: Final = (_CELLS + _RING) * 8


class StartedDeliveries:
    """The worker's side. `begin` and `end` cost well under a microsecond."""

    def __init__(self, descriptor: int) -> None:
        memory = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")
        self._running, self._ended = memory[:_CELLS], memory[_CELLS:]
        self._free = list(range(_CELLS))
        self._cells: dict[int, int] = {}
        self._number = count()

    def begin(self, delivery: int) -> None:
        """Records that an attempt of this delivery starts."""
        cell = self._free.pop()
        self._cells[delivery] = cell
        self._running[cell] = delivery

    def end(self, delivery: int) -> None:
        """Records that the attempt ended, not yet settled. Written to the ring before its cell is cleared."""
        cell = self._cells.pop(delivery, None)
        if cell is not None:
            self._ended[next(self._number) % _RING] = delivery
            self._running[cell] = 0
            self._free.append(cell)


def create_shared_memory() -> int:
    """Creates memory to share with a child process. Returns its file descriptor."""
    descriptor = os.memfd_create("todoku-started", 0) if hasattr(os, "memfd_create") else _unlinked_file()
    os.ftruncate(descriptor, SIZE)
    return descriptor


def _unlinked_file() -> int:
    import tempfile  # noqa: PLC0415 - only where there is no memfd

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def may_have_started(descriptor: int) -> frozenset[int]:
    """Returns the ids of deliveries that a dead process may have started: the supervisor's side."""
    with mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ) as memory:
        ids = memoryview(memory).cast("q")
        found = frozenset(ids) - {0}
        ids.release()
    return found
