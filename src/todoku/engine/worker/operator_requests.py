"""What operators ask of one running worker through the database: to drain, to go on, and for its handlers' stacks.

The heartbeat reads the requests together with the limits, about once a second, so that they cost no statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from todoku.engine.observability.log import Log
from todoku.engine.tracebacks import Which
from todoku.engine.worker.handler_stacks import bounded
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.pool import Pool
from todoku.store.limits import Limits
from todoku.store.store import Store

KEPT_SEC: Final = 60.0
"""Seconds for which an answer is stored."""


class OperatorRequests:
    """Obeys the requests to one worker. Only the heartbeat's thread calls `obey`.

    `on_drain(drained)` is called once for each change.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        pools: Sequence[Pool],
        *,
        tracebacks: Which,
        on_drain: Callable[[bool], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._pools = pools
        self._tracebacks: Which = tracebacks
        self._on_drain = on_drain
        self._thread: threading.Thread | None = None
        self._answered = (lease.worker, 0)
        self._clear_at: float | None = None

    def obey(self, limits: Limits) -> None:
        """Obeys what is asked of this worker now. Stacks are taken in another thread: a process may answer slowly."""
        worker = self._lease.worker
        if worker not in limits.workers:
            return  # the lease has ended: the next renewal begins a new incarnation, which is drained if this one was
        asked = limits.request_of(worker)
        if asked.drain != self._lease.drained:
            self._lease.drained = asked.drain
            Log(worker=str(worker)).warning("DRAIN_REQUESTED" if asked.drain else "RESUMED")
            self._on_drain(asked.drain)
        if self._thread is not None and self._thread.is_alive():
            return
        if asked.stacks and (worker, asked.stacks) != self._answered:
            self._answered = (worker, asked.stacks)
            self._clear_at = time.monotonic() + KEPT_SEC
            self._run(self._answer)
        elif self._clear_at is not None and time.monotonic() >= self._clear_at:
            self._clear_at = None
            self._run(self._clear)

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - looking at handlers must not end the worker
                Log(worker=str(self._lease.worker)).warning("STACKS_FAILED", error_type=type(error).__name__)

        self._thread = threading.Thread(target=guarded, name="todoku stacks", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        now = time.monotonic()
        found = bounded([one for pool in self._pools for one in pool.handlers(now)], self._tracebacks)
        self._store.leases.answer_stacks(*self._answered, msgspec.json.encode(found).decode())

    def _clear(self) -> None:
        self._store.leases.clear_stacks(*self._answered)
