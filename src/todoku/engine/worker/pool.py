"""What a worker's pools have in common: a queue of claimed work, larger priorities first, and its pace."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from todoku.core.message import Claimed
from todoku.engine.worker.pace import Pace

Work = Claimed | tuple[Claimed, ...]
"""One delivery, or the rows of a lane, to be run in turn (I10)."""

W = TypeVar("W", Claimed, tuple[Claimed, ...])


def claims_of(work: Work) -> tuple[Claimed, ...]:
    """The deliveries of a piece of work."""
    return (work,) if isinstance(work, Claimed) else work


def works_of(claims: Sequence[Claimed]) -> list[Work]:
    """Claims as work: each by itself, those of one lane together and in order."""
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
"""(priority, since when, work)"""


class Ready:
    """Work that was claimed and has not started: larger priorities first, else as it came. Thread-safe.

    Work that presses, because others wait for its place at a limit, and the rest take turns.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._queue: _Queue = deque()
        self._pressing: _Queue = deque()
        self._pressed = False
        self._monotonic = monotonic
        self._deliveries = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._deliveries

    def pressing(self) -> int:
        """How many pieces of work here press."""
        return len(self._pressing)

    def add(self, works: Iterable[Work], *, presses: bool = False) -> None:
        """Queue work that was just claimed."""
        now = self._monotonic()
        with self._lock:
            queue = self._pressing if presses else self._queue
            entries = [(work.priority if isinstance(work, Claimed) else 0, now, work) for work in works]
            priorities = [entry[0] for entry in (queue[-1], *entries)] if queue else [entry[0] for entry in entries]
            queue.extend(entries)
            self._deliveries += sum([1 if isinstance(work, Claimed) else len(work) for _, _, work in entries])
            if priorities != sorted(priorities, reverse=True):
                ordered = sorted(queue, key=_larger_first)
                queue.clear()
                queue.extend(ordered)

    def next(self) -> Work | None:
        """The next piece of work, if there is any."""
        with self._lock:
            queue = self._whose_turn() if self._pressing else self._queue
            if not queue:
                return None
            work = queue.popleft()[2]
            self._deliveries -= 1 if isinstance(work, Claimed) else len(work)
            return work

    def _whose_turn(self) -> _Queue:
        if not self._queue or self._queue[0][0] < self._pressing[0][0]:
            return self._pressing
        if self._queue[0][0] > self._pressing[0][0]:
            return self._queue
        self._pressed = not self._pressed
        return self._pressing if self._pressed else self._queue

    def next_if(self, fits: Callable[[W], bool], kind: type[W]) -> W | None:
        """The next piece of work, if it is of that kind (one by itself, or a lane) and fits: to fill up a batch."""
        with self._lock:
            for queue in (self._pressing, self._queue):
                if queue and isinstance(work := queue[0][2], kind) and fits(work):
                    queue.popleft()
                    self._deliveries -= len(claims_of(work))
                    return work
            return None

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """Take out what has not started: all of it, what `which` says, or what has waited since before a moment."""
        taken: list[Claimed] = []
        with self._lock:
            for queue in (self._pressing, self._queue):
                for _ in range(len(queue)):
                    entry = queue.popleft()
                    claims = claims_of(entry[2])
                    if (before is None or entry[1] < before) and (which is None or which(claims[0])):
                        taken += claims
                    else:
                        queue.append(entry)
            self._deliveries -= len(taken)
        return taken


def _larger_first(entry: tuple[int, float, Work]) -> int:
    return -entry[0]


class Pool(Protocol):
    """A set of slots of one kind, and the work that waits for them. Its calls may come from any thread."""

    name: str
    destinations: tuple[str, ...]
    slots: int
    pace: Pace

    def start(self) -> None:
        """Begin to run work."""

    def feed(self, works: list[Work], *, presses: bool = False) -> None:
        """Queue work that was claimed; it presses if others wait for its place at a limit."""

    def waiting(self) -> int:
        """How many deliveries are here and have not started."""

    def pressing(self) -> int:
        """How many pieces of these press."""

    def running(self) -> int:
        """How many attempts run now."""

    def occupied(self) -> int:
        """How many slots have taken work and not come back for more: an attempt of theirs runs, begins or ends."""

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """Take out what has not started, as `Ready.take`."""

    def watch(self, now: float) -> None:
        """Stop what has run too long or was cancelled."""

    def interrupt(self) -> None:
        """The grace is over: what still runs ends as INTERRUPTED, and counts."""

    def drop(self) -> None:
        """The lease is lost: forget what waits, cancel what can be cancelled; its outcome is nobody's."""

    def stop(self) -> None:
        """End the slots. Nothing runs any more, or nobody waits for it."""
