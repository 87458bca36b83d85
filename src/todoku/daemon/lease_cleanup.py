"""Ends the leases of worker processes that died, so that their deliveries run again at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from queue import SimpleQueue
from typing import Final
from uuid import UUID

from todoku.core.errors import TodokuError
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.worker.lease import end_dead_lease
from todoku.store.store import Store

_RETRY_AFTER: Final = 0.5


class LeaseCleanup:
    """A thread, because the database may be slow or gone while the supervisor must go on."""

    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        self._store = store
        self._settings = settings
        self._telemetry = telemetry
        self._dead: SimpleQueue[tuple[int, UUID, Collection[int]]] = SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="todoku-lease-cleanup", daemon=True).start()

    def end_leases(self, pid: int, worker_ids: Sequence[UUID], started: Collection[int]) -> None:
        """Queues the leases of a dead process. The thread retries until each has been ended or has run out.

        Deliveries that the process held but had not `started` do not become suspects (H6).
        """
        with self._lock:
            self._waiting += len(worker_ids)
        for worker_id in worker_ids:
            self._dead.put((pid, worker_id, started))

    @property
    def is_idle(self) -> bool:
        """Whether every queued lease has been ended or has run out."""
        return self._waiting == 0

    def _run(self) -> None:
        while True:
            pid, worker_id, started = self._dead.get()
            self._end(pid, worker_id, started)
            with self._lock:
                self._waiting -= 1

    def _end(self, pid: int, worker_id: UUID, started: Collection[int]) -> None:
        runs_out = time.monotonic() + self._settings.lease_sec
        while time.monotonic() < runs_out:
            try:
                found = end_dead_lease(self._store, worker_id, started, max_lost=self._settings.max_lost)
            except TodokuError:  # the guardrail reports the database
                time.sleep(_RETRY_AFTER)
                continue
            if found.workers or found.freed or found.aborted:
                self._telemetry.reclaimed(found)
                Log(pid=pid, worker=str(worker_id)).warning("LEASE_ENDED", freed=found.freed, aborted=found.aborted)
            return
        Log(pid=pid, worker=str(worker_id)).warning("LEASE_RAN_OUT")
