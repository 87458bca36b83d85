"""Limits, pauses and breakers, as this worker knows them: what it may not claim, and what a claim has to count."""

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
from todoku.engine.worker.held_deliveries import Hold
from todoku.store.limits import UNCOUNTED, Counted, Limits, Restriction

OFTEN: Final = 0.05
"""Seconds between two looks where a rate is kept: less than what a rate keeps for who comes late."""


class Limiting:
    """What keeps queues and destinations back. Read by the claimer, written by the heartbeat."""

    def __init__(
        self, hold: Hold, breakers: Breakers, per_key: Mapping[str, KeyLimit], bulkhead: Bulkhead | None = None, *,
        most: int | None = None, settled: Callable[[], int] = int, usual_attempts: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._hold = hold
        self.most = most
        """How many deliveries this worker may settle in its life; None: any number."""
        self._settled = settled
        self._usual_attempts = usual_attempts or {}
        self._bulkhead = bulkhead
        self._breakers = breakers
        self.per_key = per_key
        """How much of one key may run, by destination: what the code of this worker says."""
        self._queues: dict[str, Restriction] = {}
        self._destinations: dict[str, Restriction] = {}
        self._counted = UNCOUNTED
        self.known = False
        """Whether the limits were read at all: until then nothing is claimed."""
        self.paced = False
        """Whether a rate is in force: it allows something again soon, and nobody gives notice."""

    def update(self, limits: Limits) -> None:
        """The limits in force now."""
        self._queues = {limit.name: limit for limit in limits.queues}
        self._destinations = {limit.name: limit for limit in limits.destinations}
        self._counted = Counted(
            frozenset(limit.name for limit in limits.queues if _counts(limit)),
            frozenset(limit.name for limit in limits.destinations if _counts(limit)),
        )
        self.paced = any(limit.rate is not None for limit in (*limits.queues, *limits.destinations))
        self._breakers.seen_open([limit.name for limit in limits.destinations if limit.open_until > 0])
        self.known = True

    def closed(self, claim: Claimed) -> bool:
        """Whether this delivery must not start now: its queue is paused, or its destination's breaker is open."""
        queue, destination = self._queues.get(claim.queue), self._destinations.get(claim.destination)
        return bool((queue and queue.paused) or (destination and destination.open_until > 0))

    def open_breakers(self) -> tuple[str, ...]:
        """The destinations left alone now."""
        return tuple(name for name, limit in self._destinations.items() if limit.open_until)

    def room(self, queue: str, destination: str) -> int:
        """How many more may be claimed there, as far as pauses, breakers and the bulkhead go. Limits are for the claim
        to count."""
        if (paused := self._queues.get(queue)) is not None and paused.paused:
            return 0
        if (broken := self._destinations.get(destination)) is not None and broken.open_until > 0:
            return 0
        if self._breakers.probing(destination):
            shut = self._breakers.shut_for(destination) > 0
            return 0 if shut else max(0, 1 - self._hold.number(destination=destination))
        return UNLIMITED if self._bulkhead is None else self._bulkhead.room(destination)

    def allowed(self, most: int) -> int:
        """Of so many deliveries those that this worker may still claim; what it holds will be settled, too."""
        if self.most is None:
            return most
        held = len(self._hold)  # before what was settled: in between one may become the other, and none may get lost
        return max(0, min(most, self.most - held - self._settled()))

    def with_attempts(self, claims: list[Claimed]) -> list[Claimed]:
        """The same claims, each with the number of attempts that counts: the worker's, if its publisher named none."""
        usual = self._usual_attempts
        if not usual:
            return claims
        replace = msgspec.structs.replace
        return [replace(claim, max_attempts=attempts_allowed(claim, usual.get(claim.destination))) for claim in claims]

    def counted(self, most: int) -> Counted:
        """What a claim has to count, and how much of it can start here now: claimed, it counts as running."""
        return msgspec.structs.replace(self._counted, most=most) if self._counted else UNCOUNTED

    @property
    def counts(self) -> bool:
        """Whether any limit is in force."""
        return bool(self._counted)

    def presses(self, claim: Claimed) -> bool:
        """Whether this delivery takes a place that others wait for: held back here, it would hold them back too."""
        return claim.gate is not None or self._counted.has(claim.queue, claim.destination)

    def patient(self, claim: Claimed) -> bool:
        """Whether nobody waits for this delivery to be settled: one to a host, which takes no place at a limit and has
        none behind it in a lane."""
        bounded = self._bulkhead is not None and self._bulkhead.bounds(claim.destination)
        return bounded and claim.lane is None and not self.presses(claim)


def _counts(limit: Restriction) -> bool:
    return limit.concurrency is not None or limit.rate is not None
