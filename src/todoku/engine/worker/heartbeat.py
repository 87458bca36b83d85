"""The heartbeat: a thread with its own connection, so that no handler can delay the renewal of the lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from todoku.core.errors import StoreError
from todoku.engine.execute import Executor
from todoku.engine.observability.log import Log
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.limits import ClaimLimits
from todoku.engine.worker.operator_requests import OperatorRequests
from todoku.engine.worker.pool import Pool
from todoku.engine.worker.worker_thread import OnFailure, create_thread
from todoku.store.store import Store

_TICK: Final = 1.0
_LOG_INTERVAL: Final = 60.0


class Heartbeat:
    """Renews the lease, compares owned with held deliveries, and applies limits, pauses and cancellations."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        hold: HeldDeliveries,
        limiting: ClaimLimits,
        executor: Executor,
        pools: Sequence[Pool],
        *,
        failures_allowed: int,
        alive: Callable[[], bool],
        on_lost: Callable[[], None],
        give_back: Callable[..., None],
        on_failure: OnFailure,
        waits_for_database: bool,
        requests: OperatorRequests,
        on_limits: Callable[[], None],
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
        self._waits_for_database = waits_for_database
        self._requests = requests
        self._on_limits = on_limits
        self._failures = 0
        self._log_again_at = 0.0
        self._renew_at = 0.0
        self._compare = False
        self._doubts = self._resolved = 0  # claims that may have been committed; how many a comparison came after
        self._event = threading.Event()
        self._stopping = False
        self._thread = create_thread("heartbeat", self._run, on_failure)

    @property
    def database_ok(self) -> bool:
        """Whether the last heartbeat reached the database."""
        return self._failures == 0

    @property
    def tripped(self) -> bool:
        """Whether so many heartbeats failed in a row that the worker claims nothing until one succeeds."""
        return self._failures >= self._failures_allowed

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def compare_soon(self) -> None:
        """Compares owned with held deliveries soon: a claim failed that may have been committed (H3)."""
        self._doubts += 1
        self._event.set()

    def read_limits_soon(self) -> None:
        """Reads pauses and limits soon: an operator has changed one."""
        self._event.set()

    def stop(self) -> None:
        """Stops the thread. The lease stays as it is."""
        self._stopping = True
        self._event.set()
        self._thread.join()

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        every = min(_TICK, self._lease.seconds / 4)
        while not self._stopping:
            try:
                self._beat()
                self._reset_failures()
            except StoreError as error:
                self._count_failure(error)
            self._event.wait(every)
            self._event.clear()

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at and self._alive():
            if not self._lease.renew():
                self._on_lost()
            self._renew_at = now + self._lease.seconds / 4
            self._compare = True
        self._apply_limits()
        if self._compare or self._doubts > self._resolved or any(pool.running() for pool in self._pools):
            self._compare_owned()

    def _apply_limits(self) -> None:
        """Reads limits, pauses, breakers and requests, and gives back waiting deliveries that must not start now."""
        limits = self._store.limits.read()
        if self._limiting.update(limits):
            self._on_limits()
        self._requests.obey(limits)
        which = None if self._lease.drained else self._limiting.is_held_back
        for pool in self._pools:
            self._give_back(pool.take(which))

    def _compare_owned(self) -> None:
        """Reads the deliveries this worker owns: releases those it does not hold, and notes cancel requests.

        After a claim that may have been committed, young lists are looked at, too: it may have made one.
        """
        doubts = self._doubts
        with self._hold.claim_lock:
            held = self._hold.tokens()  # before the query: a delivery settled meanwhile must not look unknown
            owned = self._store.leases.owned(self._lease.worker, fresh=doubts > self._resolved)
        unknown = [row for row in owned if (row.id, row.epoch) not in held]
        if unknown:
            Log(worker=str(self._lease.worker)).warning("STRANGERS_RELEASED", number=len(unknown))
            self._store.claims.release(unknown)
        self._compare, self._resolved = False, doubts
        self._executor.cancelled = {(row.id, row.epoch) for row in owned if row.cancel_requested}

    def _count_failure(self, error: StoreError) -> None:
        self._failures += 1
        if self._failures == 1:
            self._log_failure("DATABASE_FAILED", error)
        if self._failures == self._failures_allowed:
            self._log_failure("GUARDRAIL_TRIPPED", error)
            if not self._waits_for_database:
                self._on_failure(error)
        elif time.monotonic() >= self._log_again_at:
            self._log_failure("DATABASE_STILL_FAILING", error)

    def _log_failure(self, event: str, error: StoreError) -> None:
        self._log_again_at = time.monotonic() + _LOG_INTERVAL
        Log(worker=str(self._lease.worker)).warning(event, error=str(error), failures=self._failures)

    def _reset_failures(self) -> None:
        if self._failures:
            Log(worker=str(self._lease.worker)).warning("DATABASE_RECOVERED", failures=self._failures)
        self._failures = 0
