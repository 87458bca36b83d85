"""The bulkhead: for a host a worker holds what runs at once, and ahead of that only what the host answers soon."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from todoku.engine.claim import UNLIMITED
from todoku.engine.registry import Registry
from todoku.engine.settle import BATCH
from todoku.engine.worker.held_deliveries import Hold
from todoku.engine.worker.pace import Ends, Pace

_KNOWN: Final = 1000
"""So many hosts are remembered before those that answer nothing any more are forgotten."""


class Bulkhead:
    """How much may be held for each host. The claimer asks, the settler tells what has ended."""

    def __init__(self, registry: Registry, hold: Hold, *, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._hold = hold
        self._monotonic = monotonic
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()
        self._counted: tuple[int, Counter[str]] = (-1, Counter())

    def bounds(self, destination: str) -> bool:
        """Whether it is one of those of which only so much is held."""
        target = self._registry.get(destination)
        return target is not None and target.at_once is not None

    def room(self, destination: str) -> int:
        """How many more may be claimed for it. 0 also while enough is here, so that claims are worth their while."""
        target = self._registry.get(destination)
        if target is None or target.at_once is None:
            return UNLIMITED
        with self._lock:
            pace = self._paces.get(destination)
            ahead = 0 if pace is None else pace.ahead(self._monotonic())
        free = target.at_once + ahead - self._held()[destination]
        return free if free >= max(1, ahead // 2) else 0

    def done(self, ended: Mapping[str, Ends], now: float) -> None:
        """Attempts that were settled, by destination."""
        for destination, some in ended.items():
            target = self._registry.get(destination)
            if target is not None and target.at_once is not None:
                with self._lock:
                    self._pace(destination, target.at_once, now).done(some)

    def _pace(self, destination: str, at_once: int, now: float) -> Pace:
        if destination not in self._paces:
            if len(self._paces) >= _KNOWN:
                self._paces = {name: pace for name, pace in self._paces.items() if pace.ahead(now)}
            self._paces[destination] = Pace(at_once, BATCH)
        return self._paces[destination]

    def _held(self) -> Counter[str]:
        """What is held by destination, counted again when it has changed."""
        changes = self._hold.changes
        if self._counted[0] != changes:
            self._counted = (changes, self._hold.by_destination())
        return self._counted[1]
