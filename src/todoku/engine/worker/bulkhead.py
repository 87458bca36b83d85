"""The bulkhead: bounds the deliveries a worker holds for one host to those it runs concurrently, and a few more that
the host will answer soon."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from todoku.engine.claim import UNLIMITED
from todoku.engine.registry import Registry
from todoku.engine.settle import BATCH
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.pace import Ends, Pace

_MAX_HOSTS: Final = 1000
"""Hosts whose pace is remembered; above that, hosts without recent answers are forgotten."""


class Bulkhead:
    """How many deliveries may be held for each host. Read by the claimer, updated by the settler."""

    def __init__(self, registry: Registry, hold: HeldDeliveries, *, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._hold = hold
        self._monotonic = monotonic
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()
        self._held_cache: tuple[int, Counter[str]] = (-1, Counter())

    def bounds(self, destination: str) -> bool:
        """Whether the number of deliveries held for this destination is bounded."""
        target = self._registry.get(destination)
        return target is not None and target.at_once is not None

    def room(self, destination: str) -> int:
        """Returns how many more may be claimed for a destination. 0 while enough are held, so that claims are large."""
        target = self._registry.get(destination)
        if target is None or target.at_once is None:
            return UNLIMITED
        with self._lock:
            pace = self._paces.get(destination)
            ahead = 0 if pace is None else pace.ahead(self._monotonic())
        free = target.at_once + ahead - self._count_held()[destination]
        return free if free >= max(1, ahead // 2) else 0

    def done(self, ended: Mapping[str, Ends], now: float) -> None:
        """Counts settled attempts, given by destination."""
        for destination, some in ended.items():
            target = self._registry.get(destination)
            if target is not None and target.at_once is not None:
                with self._lock:
                    self._pace(destination, target.at_once, now).done(some)

    def _pace(self, destination: str, at_once: int, now: float) -> Pace:
        if destination not in self._paces:
            if len(self._paces) >= _MAX_HOSTS:
                self._paces = {name: pace for name, pace in self._paces.items() if pace.ahead(now)}
            self._paces[destination] = Pace(at_once, BATCH)
        return self._paces[destination]

    def _count_held(self) -> Counter[str]:
        """Returns the number of held deliveries by destination, counted again only after a change."""
        changes = self._hold.changes
        if self._held_cache[0] != changes:
            self._held_cache = (changes, self._hold.by_destination())
        return self._held_cache[1]
