"""Limits, pauses and breakers as this worker last read them: what it must not claim, and what a claim must count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from todoku.core.decision import attempts_allowed
from todoku.core.limit import Limit as KeyLimit
from todoku.core.message import Claimed
from todoku.engine.claim import UNLIMITED
from todoku.engine.worker.breakers import Breakers
from todoku.engine.worker.bulkhead import Bulkhead
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.store.limits import UNCOUNTED, Counted, Limits, Restriction

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
        self._destinations: dict[str, Restriction] = {}
        self._counted = UNCOUNTED
        self.is_known = False
        """Whether the limits have been read; before that the worker claims nothing."""
        self.has_rate = False
        """Whether a rate is in force: no notice comes when it allows the next delivery, so the claimer polls often."""

    def update(self, limits: Limits) -> None:
        """Replaces the limits by those in force now."""
        self._queues = {limit.name: limit for limit in limits.queues}
        self._destinations = {limit.name: limit for limit in limits.destinations}
        self._counted = Counted(
            frozenset(limit.name for limit in limits.queues if _is_counted(limit)),
            frozenset(limit.name for limit in limits.destinations if _is_counted(limit)),
        )
        self.has_rate = any(limit.rate is not None for limit in (*limits.queues, *limits.destinations))
        self._breakers.mark_open([limit.name for limit in limits.destinations if limit.open_until > 0])
        self.is_known = True

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
        """Whether settling this delivery may be delayed: an HTTP request that is neither limited nor in a lane."""
        bounded = self._bulkhead is not None and self._bulkhead.bounds(claim.destination)
        return bounded and claim.lane is None and not self.is_limited(claim)


def _is_counted(limit: Restriction) -> bool:
    return limit.concurrency is not None or limit.rate is not None
