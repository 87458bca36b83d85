"""What one worker holds: claimed, and neither settled nor given back yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from todoku.core.message import Claimed


class Hold:
    """Deliveries held, by id. The claimer adds, the settler removes, the heartbeat compares."""

    def __init__(self) -> None:
        self._held: dict[int, Claimed] = {}
        self._lock = threading.Lock()
        self.changes = 0
        """How often it has changed: who counts what is held need not count again while this stays."""
        self.claiming = threading.Lock()
        """Held during a claim: what a claim has taken and not told yet must not look like a stranger's (H3)."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, claims: Iterable[Claimed]) -> None:
        """These are ours now."""
        with self._lock:
            self._held.update({claim.id: claim for claim in claims})
            self.changes += 1

    def remove(self, claims: Iterable[Claimed]) -> None:
        """These are settled, given back, or lost."""
        with self._lock:
            held = self._held
            self.changes += 1
            for claim in claims:
                # Claimed again meanwhile, it is held under its new epoch.
                if (known := held.get(claim.id)) is not None and known.epoch == claim.epoch:
                    del held[claim.id]

    def clear(self) -> list[Claimed]:
        """The lease has ended: nothing is ours. Returns what was."""
        with self._lock:
            dropped, self._held = list(self._held.values()), {}
            self.changes += 1
            return dropped

    def number(self, *, queue: str | None = None, destination: str | None = None) -> int:
        """How many are held of a queue, or for a destination."""
        with self._lock:
            return sum(
                (queue is None or claim.queue == queue) and (destination is None or claim.destination == destination)
                for claim in self._held.values()
            )

    def by_destination(self) -> Counter[str]:
        """How many are held for each destination."""
        with self._lock:
            return Counter(claim.destination for claim in self._held.values())

    def some(self, which: Callable[[Claimed], bool]) -> int:
        """How many are held of which this is true."""
        with self._lock:
            return sum(map(which, self._held.values()))

    def tokens(self) -> set[tuple[int, int]]:
        """What is held now, as (id, epoch)."""
        with self._lock:
            return {(claim.id, claim.epoch) for claim in self._held.values()}
