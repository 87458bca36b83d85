"""Limits: each worker takes its share of them, so that together they keep them and none asks another."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from todoku.core.message import Claimed
from todoku.engine.work.breaker import Breakers
from todoku.engine.work.hold import Hold
from todoku.store.values import Limit, Limits

UNLIMITED: Final = 1 << 30
_Name = tuple[str, str]
"""("queue" | "destination", name)"""


def share(total: int, place: int, number: int) -> int:
    """The part of `total` that falls to the worker at `place` of `number`: whole, and together exactly `total`."""
    return total // number + (place < total % number)


class Sharing:
    """How many more this worker may hold, of each queue and for each destination."""

    def __init__(self, hold: Hold, breakers: Breakers, *, monotonic: Callable[[], float]) -> None:
        self._hold = hold
        self._breakers = breakers
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._limits: dict[_Name, Limit] = {}
        self._place, self._number = 0, 1
        self._tokens: dict[_Name, tuple[float, float]] = {}

    def update(self, limits: Limits, worker: UUID) -> None:
        """The limits in force now, and who shares them."""
        with self._lock:
            self._limits = {("queue", limit.name): limit for limit in limits.queues}
            self._limits |= {("destination", limit.name): limit for limit in limits.destinations}
            self._number = max(1, len(limits.workers))
            self._place = limits.workers.index(worker) if worker in limits.workers else self._number - 1
            self._breakers.seen_open([limit.name for limit in limits.destinations if limit.open_until > 0])
            self._tokens = {name: bucket for name, bucket in self._tokens.items() if name in self._limits}

    def closed(self, claim: Claimed) -> bool:
        """Whether this delivery must not start now: its queue is paused, or its destination's breaker is open."""
        queue = self._limits.get(("queue", claim.queue))
        destination = self._limits.get(("destination", claim.destination))
        return bool((queue and queue.paused) or (destination and destination.open_until > 0))

    def open_breakers(self) -> tuple[str, ...]:
        """The destinations left alone now."""
        return tuple(name for (kind, name), limit in self._limits.items() if kind == "destination" and limit.open_until)

    def room(self, queue: str, destination: str) -> int:
        """How many more may be claimed there."""
        probing = self._breakers.probing(destination)
        if not self._limits and not probing:
            return UNLIMITED
        rooms = [self._room("queue", queue), self._room("destination", destination)]
        if probing:
            shut = self._breakers.shut_for(destination) > 0
            rooms.append(0 if shut else 1 - self._hold.number(destination=destination))
        return max(0, min(rooms))

    def taken(self, claims: Iterable[Claimed]) -> None:
        """So many were claimed: they count against rates."""
        if not self._tokens:
            return
        with self._lock:
            numbers = Counter(name for claim in claims
                              for name in (("queue", claim.queue), ("destination", claim.destination)))  # fmt: skip
            for name, number in numbers.items():
                if name in self._tokens:
                    tokens, at = self._tokens[name]
                    self._tokens[name] = (tokens - number, at)

    def _room(self, kind: str, name: str) -> int:
        limit = self._limits.get((kind, name))
        if limit is None:
            return UNLIMITED
        if limit.paused or limit.open_until > 0:
            return 0
        room = UNLIMITED
        if limit.concurrency is not None:
            held = self._hold.number(queue=name) if kind == "queue" else self._hold.number(destination=name)
            room = share(limit.concurrency, self._place, self._number) - held
        if limit.rate is not None:
            room = min(room, self._allowed((kind, name), limit.rate / self._number))
        return room

    def _allowed(self, name: _Name, rate: float) -> int:
        """How many the rate allows now: tokens that flow in with time, at most a second's worth."""
        with self._lock:
            now = self._monotonic()
            tokens, at = self._tokens.get(name, (min(1.0, rate), now))
            tokens = min(max(1.0, rate), tokens + (now - at) * rate)
            self._tokens[name] = (tokens, now)
            return int(tokens)
