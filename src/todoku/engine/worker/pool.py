"""The interface of a worker's pools, and their queue of claimed work.

Limited work is work that occupies a place at a limit: of a queue, of a destination or of a key (gate). Other deliveries
wait for that place, so limited work must not queue behind unlimited work.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from todoku.core.message import Claimed
from todoku.engine.registry import Registry
from todoku.engine.worker.handler_stacks import RunningHandler
from todoku.engine.worker.pace import Pace

Work = Claimed | tuple[Claimed, ...]
"""One delivery, or several rows of a lane, which run in order (I10)."""

W = TypeVar("W", Claimed, tuple[Claimed, ...])


def claims_of(work: Work) -> tuple[Claimed, ...]:
    """Returns the deliveries of a piece of work."""
    return (work,) if isinstance(work, Claimed) else work


def group_lanes(claims: Sequence[Claimed]) -> list[Work]:
    """Turns claims into work: the rows of one lane become one piece, in order; every other claim is a piece."""
    if not [claim for claim in claims if claim.lane is not None]:
        return list(claims)
    works: list[Work] = []
    lanes: dict[int, list[Claimed]] = {}
    for claim in claims:
        if claim.lane is None:
            works.append(claim)
        else:
            lanes.setdefault(claim.lane, []).append(claim)
    works += [tuple(rows) for rows in lanes.values()]
    return works


_Queue = deque[tuple[int, float, Work]]
"""(priority, monotonic time it was added, work)"""


class ReadyQueue:
    """Work that was claimed and has not started: larger priorities first, then in order of arrival. Thread-safe.

    Of one priority, limited and other work take turns.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._queue: _Queue = deque()
        self._limited: _Queue = deque()
        self._limited_was_last = False
        self._monotonic = monotonic
        self._deliveries = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._deliveries

    def waiting_limited(self) -> int:
        """Returns how many pieces of limited work wait."""
        return len(self._limited)

    def add(self, works: Iterable[Work], *, is_limited: bool = False) -> None:
        """Queues work that was just claimed."""
        now = self._monotonic()
        with self._lock:
            queue = self._limited if is_limited else self._queue
            entries = [(work.priority if isinstance(work, Claimed) else 0, now, work) for work in works]
            priorities = [entry[0] for entry in (queue[-1], *entries)] if queue else [entry[0] for entry in entries]
            queue.extend(entries)
            self._deliveries += sum([1 if isinstance(work, Claimed) else len(work) for _, _, work in entries])
            if priorities != sorted(priorities, reverse=True):
                ordered = sorted(queue, key=_descending_priority)
                queue.clear()
                queue.extend(ordered)

    def next(self) -> Work | None:
        """Takes the next piece of work, if there is any."""
        with self._lock:
            queue = self._next_queue() if self._limited else self._queue
            if not queue:
                return None
            work = queue.popleft()[2]
            self._deliveries -= 1 if isinstance(work, Claimed) else len(work)
            return work

    def _next_queue(self) -> _Queue:
        if not self._queue or self._queue[0][0] < self._limited[0][0]:
            return self._limited
        if self._queue[0][0] > self._limited[0][0]:
            return self._queue
        self._limited_was_last = not self._limited_was_last
        return self._limited if self._limited_was_last else self._queue

    def next_if(self, fits: Callable[[W], bool], kind: type[W]) -> W | None:
        """Takes the next piece of work, to fill a batch, if it is of `kind` (a delivery, or a lane) and `fits`."""
        with self._lock:
            for queue in (self._limited, self._queue):
                if queue and isinstance(work := queue[0][2], kind) and fits(work):
                    queue.popleft()
                    self._deliveries -= len(claims_of(work))
                    return work
            return None

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """Removes and returns work that has not started.

        `which` selects by the first delivery of each piece; `before` selects pieces added before that monotonic time.
        """
        taken: list[Claimed] = []
        with self._lock:
            for queue in (self._limited, self._queue):
                for _ in range(len(queue)):
                    entry = queue.popleft()
                    claims = claims_of(entry[2])
                    if (before is None or entry[1] < before) and (which is None or which(claims[0])):
                        taken += claims
                    else:
                        queue.append(entry)
            self._deliveries -= len(taken)
        return taken


def _descending_priority(entry: tuple[int, float, Work]) -> int:
    return -entry[0]


class Pool(Protocol):
    """A set of slots of one kind, and the work that waits for them. Methods may be called from any thread."""

    name: str
    destinations: tuple[str, ...]
    slots: int
    pace: Pace

    def start(self) -> None:
        """Starts the slots."""

    def feed(self, works: list[Work], *, is_limited: bool = False) -> None:
        """Queues claimed work."""

    def waiting(self) -> int:
        """Returns how many deliveries wait for a slot."""

    def waiting_limited(self) -> int:
        """Returns how many pieces of limited work wait for a slot."""

    def running(self) -> int:
        """Returns how many attempts run now."""

    def occupied(self) -> int:
        """Returns how many slots are not resting: they run an attempt, or are about to begin or end one."""

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """Removes and returns work that has not started, as `ReadyQueue.take`."""

    def watch(self, now: float) -> None:
        """Stops attempts that have run too long or were cancelled."""

    def handlers(self, now: float) -> list[RunningHandler]:
        """Returns the attempts that run now, and where their handlers stand."""

    def interrupt(self) -> None:
        """Ends running attempts as INTERRUPTED, which counts as an attempt. Called when the drain's grace is over."""

    def drop(self) -> None:
        """Discards waiting work and cancels running attempts where possible: the lease is lost, and with it the
        right to settle them."""

    def stop(self) -> None:
        """Ends the slots. Attempts that still run are not waited for."""


# ------------------------------------------------------------
# A queue of work that bounds how many slots one destination occupies: a slow host leaves slots to the others.

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
