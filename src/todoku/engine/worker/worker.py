"""One worker: a lease, pools of slots, and the threads that claim, settle, renew the lease, watch and maintain.

    claimer ──▶ pools (slots in the loop, threads, processes) ──▶ settler
       ▲                                                            │
       └──────────── room: deliveries were settled ◀────────────────┘

The event loop runs handlers and nothing else; every part that talks to the database has its own thread.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID, uuid4

from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.schedule import Plan
from todoku.core.settings import Settings
from todoku.engine.encryption.opener import Opener
from todoku.engine.execute import Executor, Finished
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Registry
from todoku.engine.settle import Settler
from todoku.engine.worker.breakers import Breakers
from todoku.engine.worker.claimer import Claimer
from todoku.engine.worker.companions import Companions
from todoku.engine.worker.health import Health, State
from todoku.engine.worker.heartbeat import Heartbeat
from todoku.engine.worker.held_deliveries import HeldDeliveries, StartedDeliveries
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.limits import Bulkhead, ClaimLimits
from todoku.engine.worker.maintenance import Maintainer
from todoku.engine.worker.operator_requests import OperatorRequests
from todoku.engine.worker.pace import group_ends
from todoku.engine.worker.pings import PingTask
from todoku.engine.worker.pools import Pools
from todoku.engine.worker.shutdown import shut_down
from todoku.engine.worker.slot_pool import SlotPool
from todoku.engine.worker.watchdog import Watchdog
from todoku.store.database import Listener
from todoku.store.store import Store

_INTERRUPT_GRACE: Final = 2.0
"""Seconds that interrupted handlers have to return."""


class Worker:
    """Executes the deliveries of its registry's destinations until it is drained. `run` is called once."""

    def __init__(
        self,
        store: Store,
        heart_store: Store,
        registry: Registry,
        settings: Settings,
        *,
        telemetry: Telemetry,
        name: str | None = None,
        limit: int | None = None,
        plans: Mapping[str, Plan] | None = None,
    ) -> None:
        self._store = store
        self._heart_store = heart_store
        self._registry = registry
        self._settings = settings
        self._telemetry = telemetry
        self._limit = limit
        self._plans = plans or {}
        self._state: State = "starting"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Event | None = None
        self._failure: Exception | None = None
        self._slot_free = asyncio.Event()
        self._draining = threading.Event()
        self._until_idle = False
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.on_incarnation: Callable[[UUID], None] = lambda _id: None
        self.on_stuck: Callable[[], None] | None = None
        self._watch: Watchdog | None = None
        self._heart: Heartbeat | None = None
        self._claimer: Claimer | None = None
        self._assemble()

    def _assemble(self) -> None:
        """Creates the parts that need no running event loop, from claim to settle."""
        store, registry, settings = self._store, self._registry, self._settings
        telemetry = self._telemetry
        self._hold = HeldDeliveries()
        self._breakers = Breakers(monotonic=time.monotonic, on_change=self._breaker_changed)
        per_key = {target.name: target.per_key for target in registry if target.per_key is not None}
        self._bulkhead = Bulkhead(registry, self._hold, monotonic=time.monotonic)
        self._limiting = ClaimLimits(
            self._hold, self._breakers, per_key, self._bulkhead, most=self._limit,
            settled=lambda: self._settler.settled, usual_attempts=registry.usual_attempts(),
        )  # fmt: skip
        self._lease = Lease(
            self._heart_store, name=self.name, seconds=settings.lease_sec, new_id=uuid4, monotonic=time.monotonic,
            slots=lambda: sum(pool.slots for pool in self._pools),
        )  # fmt: skip
        self._settler = Settler(
            store, registry, telemetry, self._hold, chance=random.random, on_ended=self._count_ends,
            on_settled=self._wake_claimer, on_failure=self._fail, may_settle_late=self._limiting.may_settle_late,
        )  # fmt: skip
        self._executor = Executor(
            store, registry, self._lease, telemetry,
            put=self._settler.put, give_back=self._settler.give_back, breakers=self._breakers, on_failure=self._fail,
            max_processing=settings.max_processing_sec,
            opener=Opener(settings.master_keys, store, monotonic=time.monotonic), tracebacks=settings.tracebacks,
            is_draining=self._draining.is_set,
        )  # fmt: skip
        self._pool_set = Pools(registry, settings, self._executor, self._slot_freed)
        self._pools = self._pool_set.all
        self._pinging = PingTask(registry, on_change=self._breakers.record_ping)
        self._maintainer = Maintainer(
            store, registry, settings, telemetry, chance=random.random, on_failure=self._fail,
            plans=self._plans, on_fired=self.poke,
        )  # fmt: skip
        self._companions = Companions(registry, lambda: self._lease.worker, self._fail)

    # ----------------------------------------------------------------------------------------- life cycle

    async def run(self, *, until_idle: bool = False) -> int:
        """Runs until drained, or with `until_idle` until nothing is due. Returns how many attempts were settled.

        Waits while the database is unavailable; with `until_idle` it raises instead.
        """
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._until_idle = until_idle
        listener: Listener | None = None
        if self._draining.is_set() or (until_idle and not self._settings.enabled) or not await self._begin_lease():
            self._state = "stopped"
            return 0
        try:
            self._start()
            listener = await asyncio.to_thread(self._listen)
            if self._state == "starting":
                self._state = "running"
            await self._drained.wait()
        finally:
            self._state = "draining"
            await self._drain(listener)
            self._state = "stopped"
        if self._failure is not None:
            raise self._failure
        return self._settler.settled

    def drain(self) -> None:
        """Stops claiming, finishes or gives back held deliveries, then lets `run` return.

        May be called from any thread, and from a signal handler.
        """
        self._draining.set()
        self._state = "draining" if self._state != "stopped" else self._state
        self._request_end()

    def share(self, descriptor: int) -> None:
        """Records started deliveries in memory that the supervisor shares and that outlives this process."""
        self._executor.started = StartedDeliveries(descriptor)

    def poke(self) -> None:
        """Makes the claimer look for work at once, after a publish in this process."""
        if self._claimer is not None:
            self._claimer.notice()

    def health(self) -> Health:
        """Returns the current state."""
        heart, watch = self._heart, self._watch
        return Health(
            state="draining" if self._lease.drained and self._state == "running" else self._state,
            worker_id=self._lease.worker,
            database_ok=heart is not None and heart.database_ok,
            tripped=heart is not None and heart.tripped,
            blocked=None if watch is None else watch.blocked,
            held=len(self._hold),
            running=sum(pool.running() for pool in self._pools),
            settled=self._settler.settled,
            breakers=self._limiting.open_breakers(),
            pings=self._pinging.failing,
        )

    # ------------------------------------------------------------------------------------------ starting

    async def _begin_lease(self) -> bool:
        """Begins the lease. Retries while the database is unavailable and logs that. False: drained meanwhile."""
        wait, log_again_at = 0.1, 0.0
        while not self._draining.is_set():
            try:
                await asyncio.to_thread(self._announce_ends)  # before any delivery ends
                self.on_incarnation(await asyncio.to_thread(self._lease.begin))
            except (DatabaseUnavailable, DatabaseBusy) as error:
                if self._until_idle:
                    raise
                if time.monotonic() >= log_again_at:
                    Log(worker=self.name).warning("WAITING_FOR_DATABASE", error=str(error))
                    log_again_at = time.monotonic() + 10.0
                await asyncio.to_thread(self._draining.wait, wait)
                wait = min(wait * 2, 2.0)
            else:
                return True
        return False

    def _announce_ends(self) -> None:
        """Stores what the end of a delivery does: the hooks it calls, and whether a dead letter blocks its lane."""
        self._store.announce_hooks(self._registry.hooks)
        for policy in ("park", "skip"):
            if names := [name for name, on_dead in self._registry.on_dead.items() if on_dead == policy]:
                self._store.destinations.set_on_abort(*names, skip=policy == "skip")

    def _start(self) -> None:
        assert self._loop is not None  # noqa: S101 - set by `run`
        settings = self._settings
        slot_pools = [pool for pool in self._pools if isinstance(pool, SlotPool)]

        def holder(task: asyncio.Task[Any] | None) -> str | None:
            return next((name for pool in slot_pools if (name := pool.holder(task)) is not None), None)

        self._watch = Watchdog(
            self._loop, self._pools, stale=settings.lease_sec / 4, stuck=settings.max_processing_sec, holder=holder,
            give_back=self._settler.give_back, on_stuck=self.on_stuck, is_limited=self._limiting.is_limited,
            on_failure=self._fail,
        )  # fmt: skip
        self._heart = Heartbeat(
            self._heart_store, self._lease, self._hold, self._limiting, self._executor, self._pools,
            failures_allowed=settings.guardrail_db_failures, alive=self._watch.alive,
            on_lost=self._reincarnate, give_back=self._settler.give_back, on_failure=self._fail,
            on_limits=self._wake_claimer, waits_for_database=not self._until_idle, requests=OperatorRequests(
                self._store, self._lease, self._pools, tracebacks=settings.tracebacks, on_drain=self._obey_drain),
        )  # fmt: skip
        self._claimer = Claimer(
            self._store, self._lease, self._hold, self._limiting, self._pools, self._telemetry,
            poll_interval=settings.poll_interval_sec, give_back=self._settler.give_back, may_claim=self._may_claim,
            on_ambiguous=self._heart.compare_soon, on_idle=self._request_end if self._until_idle else None,
            on_failure=self._fail, serves_runs=self._registry.serves_runs, listable=self._registry.listable,
        )  # fmt: skip
        for pool in self._pools:
            pool.start()
        self._settler.start()
        self._watch.start()
        self._heart.start()
        self._claimer.start()
        if not self._until_idle:
            self._maintainer.start()
            self._pinging.start()
            self._companions.start()

    def _listen(self) -> Listener | None:
        """Subscribes to publishers' notices. None: not available or not wanted, so the claimer only polls."""
        claimer, heart = self._claimer, self._heart
        if claimer is None or heart is None or not self._settings.notify or self._until_idle:
            return None
        try:
            listener = self._store.listen(claimer.notice, heart.read_limits_soon, claimer.is_busy)
        except StoreError as error:
            Log(worker=self.name).warning("NOT_LISTENING", error=str(error))
            return None
        if listener.announces:
            claimer.announce()
        return listener

    # ------------------------------------------------------------------------------------------- running

    def _may_claim(self) -> bool:
        heart = self._heart
        return (
            not self._draining.is_set()
            and not self._lease.drained
            and self._settings.enabled
            and heart is not None
            and not heart.tripped
            and self._limiting.is_known
            and time.monotonic() < self._lease.until
        )

    def _wake_claimer(self) -> None:
        """Wakes the claimer: deliveries were settled, or a queue was resumed."""
        if self._claimer is not None:
            self._claimer.poke()

    def _slot_freed(self) -> None:
        """Wakes the claimer if it waits for a slot, and a drain, which waits for all of them."""
        if self._claimer is not None:
            self._claimer.slot_freed()
        if self._draining.is_set() and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._slot_free.set)

    def _count_ends(self, batch: Sequence[Finished]) -> None:
        ended = group_ends(((one.claim.destination, one.started, one.ended) for one in batch), time.monotonic())
        self._pool_set.done(ended)
        self._bulkhead.done(ended, time.monotonic())

    def _breaker_changed(self, destination: str, seconds: float) -> None:
        """Gives back deliveries that wait here for the destination, and stores the breaker for other workers."""
        if seconds:
            unstarted = self._pool_set.of(destination).take(lambda claim: claim.destination == destination)
            self._settler.give_back(unstarted, delay=seconds)
        Log(adapter=destination).warning("BREAKER_OPEN" if seconds else "BREAKER_CLOSED", seconds=seconds)
        self._settler.later(lambda: self._store.limits.set_breaker(destination, open_for=seconds))

    def _reincarnate(self) -> None:
        """Drops everything held and begins a new lease, because the last one has ended.

        Outcomes that are already known still go to the ledger (I7).
        """
        Log(worker=str(self._lease.worker)).warning("LEASE_LOST", held=len(self._hold))
        with self._hold.claim_lock:
            for pool in self._pools:
                pool.drop()
            self._hold.clear()
            self.on_incarnation(self._lease.begin())
        self._wake_claimer()  # the claimer writes its state to the new row, where publishers look for idle workers

    # ------------------------------------------------------------------------------------------ draining

    def _obey_drain(self, drained: bool) -> None:
        """Lets the claimer look for work again after a drain from afar, or ends a worker that runs until it is idle.

        While `lease.drained`, `_may_claim` is false, the claimer gives back a claim in flight (I11), the heartbeat
        gives back what has not started, and what runs ends by itself. The lease and the process stay.
        """
        if drained and self._until_idle:
            self.drain()
        elif drained:
            self._companions.end()
        elif self._claimer is not None:
            self._claimer.resume()
            self._companions.start()

    def _fail(self, error: Exception) -> None:
        """Ends the worker because one of its parts failed; `run` raises the first error."""
        self._failure = self._failure or error
        self._request_end()

    def _request_end(self) -> None:
        if self._loop is not None and self._drained is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drained.set)

    async def _drain(self, listener: Listener | None) -> None:
        """Stops claiming, gives back unstarted deliveries, waits for running ones, settles, ends the lease (I11)."""
        self._draining.set()
        deadline = time.monotonic() + self._settings.drain_grace_sec
        await asyncio.to_thread(self._stop_claiming, listener)
        await self._wait_until_quiet(deadline)
        for pool in self._pools:
            pool.interrupt()
        await self._wait_until_quiet(time.monotonic() + _INTERRUPT_GRACE)
        await asyncio.to_thread(self._stop_rest)
        await shut_down(self._pool_set, self._registry)

    async def _wait_until_quiet(self, deadline: float) -> None:
        """Waits until no attempt runs, at most until the deadline."""
        while any(pool.running() for pool in self._pools) and (left := deadline - time.monotonic()) > 0:
            self._slot_free.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._slot_free.wait(), min(left, 0.25))

    def _stop_claiming(self, listener: Listener | None) -> None:
        if listener is not None:
            listener.close()
        self._pinging.stop()
        self._companions.end()
        if self._claimer is not None:
            self._claimer.stop()
        self._announce_drain()
        self._settler.give_back([claim for pool in self._pools for claim in pool.take()])

    def _announce_drain(self) -> None:
        """Writes the state "draining" to this worker's row. The claimer, which usually writes it, has stopped."""
        try:
            self._heart_store.leases.set_state(self._lease.worker, "draining")
        except StoreError as error:  # the drain goes on without it
            Log(worker=str(self._lease.worker)).warning("DRAIN_NOT_ANNOUNCED", error=str(error))

    def _stop_rest(self) -> None:
        if not self._settler.stop(grace=max(5.0, self._settings.drain_grace_sec)):
            Log(worker=self.name).error("NOT_SETTLED", held=len(self._hold))
        if self._until_idle:
            self._maintainer.run_duties_of_app()
        else:
            self._maintainer.stop()
        self._companions.close(max(5.0, self._settings.drain_grace_sec))
        if self._heart is not None:
            self._heart.stop()
        if self._watch is not None:
            self._watch.stop()
        try:
            self._heart_store.leases.end(self._lease.worker, lost=self._failure is not None)
        except StoreError as error:
            Log(worker=str(self._lease.worker)).warning("LEASE_NOT_ENDED", error=str(error))
        self._heart_store.close()
