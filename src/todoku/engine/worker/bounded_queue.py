"""A queue of work that bounds how many slots one destination occupies: a slow host leaves slots to the others."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from todoku.core.message import Claimed
from todoku.engine.registry import Registry
from todoku.engine.worker.pool import ReadyQueue, W, Work, claims_of

_Entry = tuple[bool, int, float, Work]
"""(is not limited, minus its priority, monotonic time it was added, work)"""


class BoundedQueue(ReadyQueue):
    """As ReadyQueue, with one queue per destination; destinations with a free slot take turns. Thread-safe.

    In each queue limited work comes first, then larger priorities. A lane counts for the destination of its head.
    """

    def __init__(self, registry: Registry, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        self._registry = registry
        self._queues: dict[str, deque[_Entry]] = {}
        self._capacity: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._prioritised = False

    def __len__(self) -> int:
        """Returns how many pieces can start now. The others occupy no slot, so the claimer need not count them."""
        with self._lock:
            return sum(min(len(queue), self._free(name)) for name, queue in self._queues.items())

    def waiting_limited(self) -> int:
        """Returns how many pieces of limited work wait."""
        with self._lock:
            return sum(not entry[0] for queue in self._queues.values() for entry in queue)

    def add(self, works: Iterable[Work], *, is_limited: bool = False) -> None:
        """Queues work that was just claimed."""
        now = self._monotonic()
        with self._lock:
            for work in works:
                head = claims_of(work)[0]
                entry = (not is_limited, -head.priority, now, work)
                queue = self._queue_of(head.destination)
                queue.append(entry)
                self._prioritised = self._prioritised or head.priority > 0
                if len(queue) > 1 and queue[-2][:2] > entry[:2]:
                    self._queues[head.destination] = deque(sorted(queue, key=lambda each: each[:3]))

    def next(self) -> Work | None:
        """Takes the next piece of work that may start, if there is any."""
        with self._lock:
            name = self._next_destination()
            if name is None:
                return None
            queue = self._queues.pop(name)  # re-inserted below as the last one to have a turn
            work = queue.popleft()[3]
            self._running[name] += 1
            if queue:
                self._queues[name] = queue
            return work

    def _next_destination(self) -> str | None:
        """Returns the destination whose turn it is: with a free slot, and with the largest priority if any is used."""
        able = (name for name in self._queues if self._free(name) > 0)
        if self._prioritised:
            return min(able, key=lambda name: self._queues[name][0][1], default=None)
        return next(able, None)

    def next_if(self, fits: Callable[[W], bool], kind: type[W]) -> W | None:  # noqa: ARG002 - as in ReadyQueue
        """Returns None: requests are not sent in batches."""
        return None

    def release(self, work: Work) -> None:
        """Releases the slot of work that ended, so that the next piece for its destination may start."""
        name = claims_of(work)[0].destination
        with self._lock:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
                if name not in self._queues:
                    self._capacity.pop(name, None)

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """As `ReadyQueue.take`."""
        taken: list[Claimed] = []
        with self._lock:
            for name, queue in list(self._queues.items()):
                remaining: deque[_Entry] = deque()
                for entry in queue:
                    claims = claims_of(entry[3])
                    if (before is None or entry[2] < before) and (which is None or which(claims[0])):
                        taken += claims
                    else:
                        remaining.append(entry)
                if remaining:
                    self._queues[name] = remaining
                else:
                    del self._queues[name]
        return taken

    def _queue_of(self, name: str) -> deque[_Entry]:
        if name not in self._capacity:
            self._capacity[name] = self._registry[name].at_once or 1
        return self._queues.setdefault(name, deque())

    def _free(self, name: str) -> int:
        return self._capacity[name] - self._running[name]
