"""What a worker's pools have in common: a queue of claimed work, larger priorities first, and its pace."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from todoku.core.message import Claimed
from todoku.engine.work.pace import Pace

Work = Claimed | tuple[Claimed, ...]
"""One delivery, or the rows of a lane, to be run in turn (I10)."""


def claims_of(work: Work) -> tuple[Claimed, ...]:
    """The deliveries of a piece of work."""
    return (work,) if isinstance(work, Claimed) else work


def works_of(claims: Sequence[Claimed]) -> list[Work]:
    """Claims as work: each by itself, those of one lane together and in order."""
    works: list[Work] = []
    lanes: dict[int, list[Claimed]] = {}
    for claim in claims:
        if claim.lane is None:
            works.append(claim)
        else:
            lanes.setdefault(claim.lane, []).append(claim)
    works += [tuple(rows) for rows in lanes.values()]
    return works


class Ready:
    """Work that was claimed and has not started: larger priorities first, else as it came. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._queue: deque[tuple[int, float, Work]] = deque()
        self._monotonic = monotonic
        self._deliveries = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._deliveries

    def add(self, works: Iterable[Work]) -> None:
        """Queue work that was just claimed."""
        now = self._monotonic()
        with self._lock:
            in_order = True
            for work in works:
                priority = work.priority if isinstance(work, Claimed) else 0
                in_order = in_order and (not self._queue or self._queue[-1][0] >= priority)
                self._queue.append((priority, now, work))
                self._deliveries += len(claims_of(work))
            if not in_order:
                self._queue = deque(sorted(self._queue, key=_larger_first))

    def next(self) -> Work | None:
        """The next piece of work, if there is any."""
        with self._lock:
            if not self._queue:
                return None
            work = self._queue.popleft()[2]
            self._deliveries -= 1 if isinstance(work, Claimed) else len(work)
            return work

    def next_if(self, fits: Callable[[Claimed], bool]) -> Claimed | None:
        """The next delivery, if it is one by itself and fits: to fill up a batch."""
        with self._lock:
            if not self._queue or not isinstance(work := self._queue[0][2], Claimed) or not fits(work):
                return None
            self._queue.popleft()
            self._deliveries -= 1
            return work

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """Take out what has not started: all of it, what `which` says, or what has waited since before a moment."""
        kept: deque[tuple[int, float, Work]] = deque()
        taken: list[Claimed] = []
        with self._lock:
            for entry in self._queue:
                claims = claims_of(entry[2])
                if (which is None or which(claims[0])) and (before is None or entry[1] < before):
                    taken += claims
                else:
                    kept.append(entry)
            self._queue = kept
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

    def feed(self, works: list[Work]) -> None:
        """Queue work that was claimed."""

    def waiting(self) -> int:
        """How many deliveries are here and have not started."""

    def running(self) -> int:
        """How many attempts run now."""

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
