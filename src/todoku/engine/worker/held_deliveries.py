"""The deliveries that one worker holds: claimed, and neither settled nor given back yet."""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from todoku.core.message import Claimed
from todoku.engine.shared_memory import create_memory

# ------------------------------------------------------------
# Which deliveries a worker process may have started, in memory that outlives the process.
#
# After kill -9 it would be unknown which deliveries had started, and all that the worker held would be suspects, which
# run alone (H6). A supervisor that shares this memory with its child knows: unstarted deliveries are given back.

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
    return create_memory("todoku-started", SIZE)


def may_have_started(descriptor: int) -> frozenset[int]:
    """Returns the ids of deliveries that a dead process may have started: the supervisor's side."""
    with mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ) as memory:
        ids = memoryview(memory).cast("q")
        found = frozenset(ids) - {0}
        ids.release()
    return found


class HeldDeliveries:
    """Held deliveries by id. The claimer adds, the settler removes, the heartbeat compares them with the database."""

    def __init__(self) -> None:
        self._held: dict[int, Claimed] = {}
        self._lock = threading.Lock()
        self.changes = 0
        """Raised by every change, so that callers can cache their counts."""
        self.claim_lock = threading.Lock()
        """Locked during a claim: rows claimed in the database and not added here yet must not look unknown (H3)."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, claims: Iterable[Claimed]) -> None:
        """Adds deliveries that were claimed."""
        with self._lock:
            self._held.update({claim.id: claim for claim in claims})
            self.changes += 1

    def remove(self, claims: Iterable[Claimed]) -> None:
        """Removes deliveries that were settled, given back, or lost."""
        with self._lock:
            held = self._held
            self.changes += 1
            for claim in claims:
                # A delivery claimed again meanwhile is held under its new epoch, and stays.
                if (known := held.get(claim.id)) is not None and known.epoch == claim.epoch:
                    del held[claim.id]

    def clear(self) -> list[Claimed]:
        """Removes and returns all deliveries, because the lease has ended."""
        with self._lock:
            dropped, self._held = list(self._held.values()), {}
            self.changes += 1
            return dropped

    def count(self, *, queue: str | None = None, destination: str | None = None) -> int:
        """Returns how many are held of a queue, for a destination, or in all."""
        with self._lock:
            return sum(
                (queue is None or claim.queue == queue) and (destination is None or claim.destination == destination)
                for claim in self._held.values()
            )

    def by_destination(self) -> Counter[str]:
        """Returns how many are held for each destination."""
        with self._lock:
            return Counter(claim.destination for claim in self._held.values())

    def count_matching(self, which: Callable[[Claimed], bool]) -> int:
        """Returns how many held deliveries satisfy `which`."""
        with self._lock:
            return sum(map(which, self._held.values()))

    def tokens(self) -> set[tuple[int, int]]:
        """Returns the held deliveries as (id, epoch)."""
        with self._lock:
            return {(claim.id, claim.epoch) for claim in self._held.values()}
