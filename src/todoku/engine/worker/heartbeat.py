"""The heartbeat: a thread with its own connection, so that nothing a handler does costs the lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from todoku.core.errors import StoreError
from todoku.engine.execute import Executor
from todoku.engine.observability.log import Log
from todoku.engine.worker.held_deliveries import Hold
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.limits import Limiting
from todoku.engine.worker.pool import Pool
from todoku.engine.worker.worker_thread import OnFailure, thread
from todoku.store.store import Store

_TICK: Final = 1.0
_REMINDER: Final = 60.0


class Heart:
    """Renews the lease, compares what is owned with what is held, and obeys limits, pauses and cancellations."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        hold: Hold,
        limiting: Limiting,
        executor: Executor,
        pools: Sequence[Pool],
        *,
        failures_allowed: int,
        alive: Callable[[], bool],
        on_lost: Callable[[], None],
        give_back: Callable[..., None],
        on_failure: OnFailure,
        patient: bool,
    ) -> None:
        self._store = store
        self._lease = lease
        self._hold = hold
        self._limiting = limiting
        self._executor = executor
        self._pools = pools
        self._failures_allowed = failures_allowed
        self._alive = alive
        self._on_lost = on_lost
        self._give_back = give_back
        self._on_failure = on_failure
        self._patient = patient
        self._failures = 0
        self._reminded = 0.0
        self._renew_at = 0.0
        self._compare = False
        self._event = threading.Event()
        self._stopping = False
        self._thread = thread("heartbeat", self._run, on_failure)

    @property
    def database_ok(self) -> bool:
        """Whether the database answered the last time."""
        return self._failures == 0

    @property
    def tripped(self) -> bool:
        """Whether it has not answered so often that nothing is claimed until it does."""
        return self._failures >= self._failures_allowed

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def compare_soon(self) -> None:
        """A claim failed, and may have committed: look what is owned (H3)."""
        self._compare = True
        self._event.set()

    def stop(self) -> None:
        """Stop. The lease is not ended by it."""
        self._stopping = True
        self._event.set()
        self._thread.join()

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        every = min(_TICK, self._lease.seconds / 4)
        while not self._stopping:
            try:
                self._beat()
                self._recovered()
            except StoreError as error:
                self._failed(error)
            self._event.wait(every)
            self._event.clear()

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at and self._alive():
            if not self._lease.renew():
                self._on_lost()
            self._renew_at = now + self._lease.seconds / 4
            self._compare = True
        self._obey()
        if self._compare or any(pool.running() for pool in self._pools):
            self._look()

    def _obey(self) -> None:
        """Limits, pauses and breakers as they are now; what must not start is given back."""
        self._limiting.update(self._store.limits.read())
        for pool in self._pools:
            self._give_back(pool.take(self._limiting.closed))

    def _look(self) -> None:
        """What the database says is ours: strangers are released, and requests to stop are heard."""
        self._compare = False
        with self._hold.claiming:
            held = self._hold.tokens()  # before asking: what is settled meanwhile was ours
            owned = self._store.leases.owned(self._lease.worker)
            strangers = [row for row in owned if (row.id, row.epoch) not in held]
        if strangers:
            Log(worker=str(self._lease.worker)).warning("STRANGERS_RELEASED", number=len(strangers))
            self._store.claims.release(strangers)
        self._executor.cancelled = {(row.id, row.epoch) for row in owned if row.cancel_requested}

    def _failed(self, error: StoreError) -> None:
        self._failures += 1
        if self._failures == 1:
            self._remind("DATABASE_FAILED", error)
        if self._failures == self._failures_allowed:
            self._remind("GUARDRAIL_TRIPPED", error)
            if not self._patient:
                self._on_failure(error)
        elif time.monotonic() >= self._reminded:
            self._remind("DATABASE_STILL_FAILING", error)

    def _remind(self, event: str, error: StoreError) -> None:
        self._reminded = time.monotonic() + _REMINDER
        Log(worker=str(self._lease.worker)).warning(event, error=str(error), failures=self._failures)

    def _recovered(self) -> None:
        if self._failures:
            Log(worker=str(self._lease.worker)).warning("DATABASE_RECOVERED", failures=self._failures)
        self._failures = 0
