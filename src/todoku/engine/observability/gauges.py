"""The gauges, read from the database by the process that serves /metrics: lag, age, in flight, stuck, dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from todoku.core.errors import StoreError
from todoku.store.store import Store


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges at one moment."""

    lag_events: int
    oldest_age_seconds: float
    inflight_events: int
    stuck_processing_events: int
    dead_letters: int
    breakers_open: int


def read_gauges(store: Store, *, stuck_after: float) -> Gauges:
    """Reads the gauges. Deliveries in flight for more than `stuck_after` seconds, or without live owner, are stuck."""
    lag, limits = store.statistics.lag(stuck_after=stuck_after), store.limits.read()
    return Gauges(
        lag_events=lag.due,
        oldest_age_seconds=lag.oldest,
        inflight_events=lag.sending,
        stuck_processing_events=lag.stuck,
        dead_letters=lag.dead,
        breakers_open=sum(destination.open_until > 0 for destination in limits.destinations),
    )


class CachedGauges:
    """Reads the gauges at most every `max_age` seconds, however often they are requested. Blocks while reading."""

    def __init__(
        self,
        store: Store,
        *,
        stuck_after: float,
        max_age: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._stuck_after = stuck_after
        self._max_age = max_age
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._until = 0.0
        self._seen: Gauges | None = None

    def read(self) -> Gauges | None:
        """Returns the gauges; None if the database is unavailable, because old values would hide that."""
        with self._lock:
            if self._monotonic() >= self._until:
                try:
                    self._seen = read_gauges(self._store, stuck_after=self._stuck_after)
                except StoreError:
                    self._seen = None
                self._until = self._monotonic() + self._max_age
            return self._seen
