"""The lease of a worker: the id of its current incarnation, and until when it may start attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from todoku.engine.installed_version import installed_version
from todoku.store.leases import Reclaimed
from todoku.store.store import Store


class Lease:
    """One worker's lease, by its own monotonic clock, counted from before each request to the database (I12)."""

    def __init__(
        self, store: Store, *, name: str, seconds: float, new_id: Callable[[], UUID], monotonic: Callable[[], float],
        slots: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._name = name
        self._new_id = new_id
        self._monotonic = monotonic
        self.seconds = seconds
        self._slots = slots
        self.worker = new_id()
        self.until = 0.0
        self.drained = False
        """Whether an operator has drained this worker from afar; kept by the next incarnation."""

    def begin(self) -> UUID:
        """Begins a new incarnation and returns its id. An id is never reused, also not after a lost reply."""
        before, worker = self._monotonic(), self._new_id()
        slots = None if self._slots is None else self._slots()
        self._store.leases.register(
            worker, name=self._name, lease=self.seconds, slots=slots, version=installed_version(), drained=self.drained
        )
        self.worker, self.until = worker, before + self.seconds
        return worker

    def renew(self) -> bool:
        """Extends the lease. False: it has ended, and the worker has lost everything it held (I3)."""
        before = self._monotonic()
        if not self._store.leases.renew(self.worker, lease=self.seconds):
            self.until = 0.0
            return False
        self.until = before + self.seconds
        return True

    def end(self) -> None:
        """Lets no further attempt start."""
        self.until = 0.0


def end_dead_lease(store: Store, worker: UUID, started: Collection[int], *, max_lost: int) -> Reclaimed:
    """Ends the lease of a worker process that died.

    Deliveries it had not started are given back; the others count as lost, because their effects are unknown.
    """
    store.claims.release([held for held in store.leases.owned(worker, fresh=True) if held.id not in started])
    return store.leases.end(worker, lost=True, max_lost=max_lost)
