"""Work that waits for slots, of which a destination may take only so many: a slow one leaves the rest to others."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from todoku.core.message import Claimed
from todoku.engine.registry import Registry
from todoku.engine.worker.pool import Ready, W, Work, claims_of

_Entry = tuple[bool, int, float, Work]
"""(does not press, minus its priority, since when, work)"""


class Bounded(Ready):
    """As Ready, in a line for each destination; those that may start something take turns. Thread-safe.

    In a line what presses comes first, then larger priorities. A lane counts for the destination of its head.
    """

    def __init__(self, registry: Registry, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        self._registry = registry
        self._lines: dict[str, deque[_Entry]] = {}
        self._at_once: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._prioritised = False

    def __len__(self) -> int:
        """How many can start now: the others take nothing from anybody, so there is room for more than them."""
        with self._lock:
            return sum(min(len(line), self._free(name)) for name, line in self._lines.items())

    def pressing(self) -> int:
        """How many pieces of work here press."""
        with self._lock:
            return sum(not entry[0] for line in self._lines.values() for entry in line)

    def add(self, works: Iterable[Work], *, presses: bool = False) -> None:
        """Queue work that was just claimed."""
        now = self._monotonic()
        with self._lock:
            for work in works:
                head = claims_of(work)[0]
                entry = (not presses, -head.priority, now, work)
                line = self._line(head.destination)
                line.append(entry)
                self._prioritised = self._prioritised or head.priority > 0
                if len(line) > 1 and line[-2][:2] > entry[:2]:
                    self._lines[head.destination] = deque(sorted(line, key=lambda each: each[:3]))

    def next(self) -> Work | None:
        """The next piece of work that may start, if there is any."""
        with self._lock:
            name = self._first()
            if name is None:
                return None
            line = self._lines.pop(name)  # it goes to the end of the row
            work = line.popleft()[3]
            self._running[name] += 1
            if line:
                self._lines[name] = line
            return work

    def _first(self) -> str | None:
        """Of the destinations that may start something the first, with the largest priority if there are such."""
        able = (name for name in self._lines if self._free(name) > 0)
        if self._prioritised:
            return min(able, key=lambda name: self._lines[name][0][1], default=None)
        return next(able, None)

    def next_if(self, fits: Callable[[W], bool], kind: type[W]) -> W | None:  # noqa: ARG002 - as Ready's
        """Nothing: each is sent by itself."""
        return None

    def ended(self, work: Work) -> None:
        """It does not run any more: another one for its destination may."""
        name = claims_of(work)[0].destination
        with self._lock:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
                if name not in self._lines:
                    self._at_once.pop(name, None)

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        """As Ready's."""
        taken: list[Claimed] = []
        with self._lock:
            for name, line in list(self._lines.items()):
                kept: deque[_Entry] = deque()
                for entry in line:
                    claims = claims_of(entry[3])
                    if (before is None or entry[2] < before) and (which is None or which(claims[0])):
                        taken += claims
                    else:
                        kept.append(entry)
                if kept:
                    self._lines[name] = kept
                else:
                    del self._lines[name]
        return taken

    def _line(self, name: str) -> deque[_Entry]:
        if name not in self._at_once:
            self._at_once[name] = self._registry[name].at_once or 1
        return self._lines.setdefault(name, deque())

    def _free(self, name: str) -> int:
        return self._at_once[name] - self._running[name]
