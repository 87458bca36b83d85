"""The lease: which incarnation this worker is, and until when it may start anything."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from todoku.store.leases import Reclaimed
from todoku.store.store import Store


class Lease:
    """One worker's lease, by its own monotonic clock, measured from before each request (I12)."""

    def __init__(
        self, store: Store, *, name: str, seconds: float, new_id: Callable[[], UUID], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._name = name
        self._new_id = new_id
        self._monotonic = monotonic
        self.seconds = seconds
        self.worker = new_id()
        self.until = 0.0

    def begin(self) -> UUID:
        """Begin a new incarnation. An id is used once: after a lost reply, too, another one is taken."""
        before, worker = self._monotonic(), self._new_id()
        self._store.leases.register(worker, name=self._name, lease=self.seconds)
        self.worker, self.until = worker, before + self.seconds
        return worker

    def renew(self) -> bool:
        """Extend it. False: it has ended, and everything held is lost (I3)."""
        before = self._monotonic()
        if not self._store.leases.renew(self.worker, lease=self.seconds):
            self.until = 0.0
            return False
        self.until = before + self.seconds
        return True

    def end(self) -> None:
        """Nothing is started any more."""
        self.until = 0.0


def bury_dead(store: Store, worker: UUID, started: Collection[int], *, max_lost: int) -> Reclaimed:
    """End the lease of a process that died. What it had only claimed is given back; the rest may have done anything."""
    store.claims.release([held for held in store.leases.owned(worker) if held.id not in started])
    return store.leases.end(worker, lost=True, max_lost=max_lost)
