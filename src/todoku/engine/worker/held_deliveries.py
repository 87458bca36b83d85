"""The deliveries that one worker holds: claimed, and neither settled nor given back yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from todoku.core.message import Claimed


class HeldDeliveries:
    """Held deliveries by id. The claimer adds, the settler removes, the heartbeat compares them with the database."""

    def __init__(self) -> None:
        self._held: dict[int, Claimed] = {}
        self._lock = threading.Lock()
        self.changes = 0
        """Raised by every change, so that callers can cache their counts."""
        self.claim_lock = threading.Lock()
        """Locked during a claim: rows claimed in the database and not added here yet must not look unknown (H3)."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, claims: Iterable[Claimed]) -> None:
        """Adds deliveries that were claimed."""
        with self._lock:
            self._held.update({claim.id: claim for claim in claims})
            self.changes += 1

    def remove(self, claims: Iterable[Claimed]) -> None:
        """Removes deliveries that were settled, given back, or lost."""
        with self._lock:
            held = self._held
            self.changes += 1
            for claim in claims:
                # A delivery claimed again meanwhile is held under its new epoch, and stays.
                if (known := held.get(claim.id)) is not None and known.epoch == claim.epoch:
                    del held[claim.id]

    def clear(self) -> list[Claimed]:
        """Removes and returns all deliveries, because the lease has ended."""
        with self._lock:
            dropped, self._held = list(self._held.values()), {}
            self.changes += 1
            return dropped

    def count(self, *, queue: str | None = None, destination: str | None = None) -> int:
        """Returns how many are held of a queue, for a destination, or in all."""
        with self._lock:
            return sum(
                (queue is None or claim.queue == queue) and (destination is None or claim.destination == destination)
                for claim in self._held.values()
            )

    def by_destination(self) -> Counter[str]:
        """Returns how many are held for each destination."""
        with self._lock:
            return Counter(claim.destination for claim in self._held.values())

    def count_matching(self, which: Callable[[Claimed], bool]) -> int:
        """Returns how many held deliveries satisfy `which`."""
        with self._lock:
            return sum(map(which, self._held.values()))

    def tokens(self) -> set[tuple[int, int]]:
        """Returns the held deliveries as (id, epoch)."""
        with self._lock:
            return {(claim.id, claim.epoch) for claim in self._held.values()}
