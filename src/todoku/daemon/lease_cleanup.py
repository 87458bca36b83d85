"""Ending the leases of worker processes that died, so that what they held runs again at once."""

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
from todoku.store.port import Store

_AGAIN_AFTER: Final = 0.5


class Undertaker:
    """A thread of its own, because the database may be slow or gone while the supervisor must go on."""

    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        self._store = store
        self._settings = settings
        self._telemetry = telemetry
        self._dead: SimpleQueue[tuple[int, UUID, Collection[int]]] = SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="todoku-burial", daemon=True).start()

    def bury(self, pid: int, worker_ids: Sequence[UUID], started: Collection[int]) -> None:
        """End these leases of a dead process: soon, and again and again until it is done or they ran out.

        What it held and had not `started` is nobody's suspect (H6).
        """
        with self._lock:
            self._waiting += len(worker_ids)
        for worker_id in worker_ids:
            self._dead.put((pid, worker_id, started))

    @property
    def idle(self) -> bool:
        """Whether everybody is buried."""
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
            except TodokuError:  # the guardrail tells about the database
                time.sleep(_AGAIN_AFTER)
                continue
            if found.workers or found.freed or found.aborted:
                self._telemetry.reclaimed(found)
                Log(pid=pid, worker=str(worker_id)).warning("LEASE_ENDED", freed=found.freed, aborted=found.aborted)
            return
        Log(pid=pid, worker=str(worker_id)).warning("LEASE_RAN_OUT")
