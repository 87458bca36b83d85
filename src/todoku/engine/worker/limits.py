"""Limits, pauses and breakers as this worker last read them: what it must not claim, and what a claim must count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from todoku.core.decision import attempts_allowed
from todoku.core.limit import Limit as KeyLimit
from todoku.core.message import Claimed
from todoku.engine.claim import UNLIMITED
from todoku.engine.registry import Registry
from todoku.engine.settle import BATCH
from todoku.engine.worker.breakers import Breakers
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.pace import Ends, Pace
from todoku.store.limits import UNCOUNTED, Counted, Limits, Restriction

# ------------------------------------------------------------
# The bulkhead: bounds the deliveries a worker holds for one host to those it runs concurrently, and a few more that
# the host will answer soon.

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
        """Counts attempts that ended, given by destination."""
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


RATE_POLL_SEC: Final = 0.05
"""Seconds between two claims while a rate is in force: shorter than the lateness for which a rate makes up."""


class ClaimLimits:
    """The restrictions on queues and destinations. Read by the claimer, written by the heartbeat."""

    def __init__(
        self,
        hold: HeldDeliveries,
        breakers: Breakers,
        per_key: Mapping[str, KeyLimit],
        bulkhead: Bulkhead | None = None,
        *,
        most: int | None = None,
        settled: Callable[[], int] = int,
        usual_attempts: Mapping[str, int] | None = None,
    ) -> None:
        self._hold = hold
        self.most = most
        """How many deliveries this worker may settle before it ends; None: any number."""
        self._settled = settled
        self._usual_attempts = usual_attempts or {}
        self._bulkhead = bulkhead
        self._breakers = breakers
        self.per_key = per_key
        """The limits of single keys by destination, as this worker's code declares them."""
        self._queues: dict[str, Restriction] = {}
        self._paused: frozenset[str] = frozenset()
        self._destinations: dict[str, Restriction] = {}
        self._counted = UNCOUNTED
        self.is_known = False
        """Whether the limits have been read; before that the worker claims nothing."""
        self.has_rate = False
        """Whether a rate is in force: no notice comes when it allows the next delivery, so the claimer polls often."""

    def update(self, limits: Limits) -> bool:
        """Replaces the limits by those in force now. Returns whether queues are paused or resumed by that."""
        paused = self._paused
        self._paused = frozenset(limit.name for limit in limits.queues if limit.paused)
        self._queues = {limit.name: limit for limit in limits.queues}
        self._destinations = {limit.name: limit for limit in limits.destinations}
        self._counted = Counted(
            frozenset(limit.name for limit in limits.queues if _is_counted(limit)),
            frozenset(limit.name for limit in limits.destinations if _is_counted(limit)),
        )
        self.has_rate = any(limit.rate is not None for limit in (*limits.queues, *limits.destinations))
        self._breakers.mark_open([limit.name for limit in limits.destinations if limit.open_until > 0])
        self.is_known = True
        return paused != self._paused

    def is_held_back(self, claim: Claimed) -> bool:
        """Whether this delivery must not start now: its queue is paused, or its destination's breaker is open."""
        queue, destination = self._queues.get(claim.queue), self._destinations.get(claim.destination)
        return bool((queue and queue.paused) or (destination and destination.open_until > 0))

    def open_breakers(self) -> tuple[str, ...]:
        """Returns the destinations whose breaker is open."""
        return tuple(name for name, limit in self._destinations.items() if limit.open_until)

    def room(self, queue: str, destination: str) -> int:
        """Returns how many more may be claimed, by pauses, breakers and the bulkhead. The claim counts the limits."""
        if (paused := self._queues.get(queue)) is not None and paused.paused:
            return 0
        if (broken := self._destinations.get(destination)) is not None and broken.open_until > 0:
            return 0
        if self._breakers.is_half_open(destination):
            shut = self._breakers.seconds_open(destination) > 0
            return 0 if shut else max(0, 1 - self._hold.count(destination=destination))
        return UNLIMITED if self._bulkhead is None else self._bulkhead.room(destination)

    def allowed(self, most: int) -> int:
        """Caps a number of deliveries by those this worker may still settle; held ones count as settled."""
        if self.most is None:
            return most
        held = len(self._hold)  # read before `settled`: a delivery settled in between counts twice and not never
        return max(0, min(most, self.most - held - self._settled()))

    def with_attempts(self, claims: list[Claimed]) -> list[Claimed]:
        """Returns the claims with `max_attempts` filled in: the worker's setting where the publisher gave none."""
        usual = self._usual_attempts
        if not usual:
            return claims
        replace = msgspec.structs.replace
        return [replace(claim, max_attempts=attempts_allowed(claim, usual.get(claim.destination))) for claim in claims]

    def counted(self, most: int) -> Counted:
        """Returns the limits a claim must count, and how many limited deliveries it may take.

        `most` is how many can start here now: a claimed delivery counts as running.
        """
        return msgspec.structs.replace(self._counted, most=most) if self._counted else UNCOUNTED

    @property
    def has_limits(self) -> bool:
        """Whether any limit is in force."""
        return bool(self._counted)

    def is_limited(self, claim: Claimed) -> bool:
        """Whether this delivery is limited: it occupies a place at a limit, for which others wait."""
        return claim.gate is not None or self._counted.has(claim.queue, claim.destination)

    def may_settle_late(self, claim: Claimed) -> bool:
        """Whether settling this delivery may be delayed: an HTTP request, or one that was claimed by list (out of a
        backlog of short ones), if it is neither limited nor in a lane."""
        may = claim.claim_list is not None or (self._bulkhead is not None and self._bulkhead.bounds(claim.destination))
        return may and claim.lane is None and not self.is_limited(claim)


def _is_counted(limit: Restriction) -> bool:
    return limit.concurrency is not None or limit.rate is not None
