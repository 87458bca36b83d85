"""The supervisor: starts worker processes, replaces those that die, drains them, and tracks their state.

One thread handles events one after the other and never waits for the database; whatever has to wait runs in another
thread. Only this thread changes the supervisor's state; the HTTP thread reads it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, Literal, assert_never
from uuid import UUID

import msgspec

from todoku.core.errors import TodokuError
from todoku.core.settings import Settings
from todoku.daemon.children import Child, ChildDied, ChildPlace, NoticeReceived, SupervisedProcess, describe_exit
from todoku.daemon.database_start import DatabaseOpened, DatabaseRefused, Opening
from todoku.daemon.guardrail import Guardrail, Pinger
from todoku.daemon.pipe import MetricsReport, Notice, Serving
from todoku.daemon.serving import DRAIN_SEC, ServingChild, ServingProcesses
from todoku.daemon.systemd import Notify
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Children
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.worker.lease import end_dead_lease
from todoku.store.store import Store

# ------------------------------------------------------------
# Ends the leases of worker processes that died, so that their deliveries run again at once.

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


TICK: Final = 0.25
MARGIN: Final = 5.0
"""Seconds. Worker processes exit by themselves within `drain_grace_sec`; this much later they are killed."""

CLEANUP_SEC: Final = 3.0
"""Seconds that ending the leases of dead processes may take before the supervisor exits."""

State = Literal["starting", "running", "draining"]


class SignalReceived(msgspec.Struct, frozen=True):
    """The supervisor received SIGTERM or SIGINT."""

    number: int


Event = SignalReceived | DatabaseOpened | DatabaseRefused | NoticeReceived | ChildDied


class Supervisor:
    """See the module. `command(number, pipe, memory)` returns the command of a worker process; both are descriptors."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        telemetry: Telemetry,
        *,
        processes: int,
        command: Callable[[int, int, int], Sequence[str]],
        opening: Opening,
        opened: Callable[[], None],
        notify: Notify,
    ) -> None:
        self.settings = settings
        self.opening = opening
        self.guardrail = Guardrail(settings.guardrail_db_failures)
        self.places = tuple(ChildPlace[Child](number) for number in range(1, processes + 1)) if settings.enabled else ()
        self.serving: ServingProcesses | None = None
        """The serving processes besides this one; set before `run`."""
        self.metrics = Children()
        self.state: State = "starting"
        self.ticked_at = time.monotonic()
        self._command = command
        self._opened = opened
        self._notify = notify
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._pinger = Pinger(store.ping, self.guardrail, settings.guardrail_db_failures)
        self._lease_cleanup = LeaseCleanup(store, settings, telemetry)
        self._exit_code: int | None = None
        self._deadline = 0.0
        self._workers_drain_at: float | None = None

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT; returns the exit code. A second signal kills everything at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive_signal)
        self.opening.start(self._events)
        try:
            while True:
                self._next_event()
                self._tick()
                if self.state == "draining" and self._has_ended():
                    return self._exit_code or 0
        finally:
            self._pinger.stop()
            for child in (*self.children, *self._serving_children):
                child.kill()

    @property
    def children(self) -> list[Child]:
        """The worker processes that exist now."""
        return [child for place in self.places if (child := place.child) is not None]

    @property
    def _serving_children(self) -> list[ServingChild]:
        return [] if self.serving is None else self.serving.children

    def _receive_signal(self, number: int, _: FrameType | None) -> None:
        self._events.put(SignalReceived(number))  # safe in a signal handler, even during another put

    def _next_event(self) -> None:
        try:
            event = self._events.get(timeout=TICK)
        except Empty:
            return
        match event:
            case SignalReceived(number):
                self._stop(number)
            case DatabaseOpened():
                self._begin()
            case DatabaseRefused(error):
                raise error
            case NoticeReceived(child, notice):
                self._record(child, notice)
            case ChildDied(child, code):
                self.metrics.retire(child.pid)
                if isinstance(child, Child):
                    self._handle_death(child, code)
                elif isinstance(child, ServingChild) and self.serving is not None:
                    self.serving.handle_death(child, code, is_draining=self.state == "draining")
            case _:
                assert_never(event)

    def _record(self, child: SupervisedProcess, notice: Notice) -> None:
        child.record(notice)
        if isinstance(notice, MetricsReport):
            self.metrics.record(child.pid, notice.dump)
        elif isinstance(notice, Serving) and self.serving is not None and self.state == "running":
            self.serving.leave_socket(child.number)

    # -------------------------------------------------------------------------------------- up and running

    def _begin(self) -> None:
        if self.state == "starting":
            self.state = "running"
            self._pinger.start()
            self._opened()

    def _tick(self) -> None:
        now = self.ticked_at = time.monotonic()
        self._pinger.check()
        if self.state == "running":
            for place in self.places:
                self._check_place(place, now)
            if self.serving is not None:
                self.serving.check(now, self._events)
            if not self.places or any(child.is_working for child in self.children):
                self._notify.ready()
        self._notify.status(self._status())
        self._notify.feed_watchdog()

    def _check_place(self, place: ChildPlace[Child], now: float) -> None:
        child = place.child
        if place.may_start(now):
            place.fill(self._start(place))
        elif (
            child is not None
            and not child.was_killed
            and (silent := now - child.last_notice_at) > self.settings.lease_sec + MARGIN
        ):
            Log(pid=child.pid, number=child.number).error("WORKER_SILENT", seconds=round(silent))
            child.was_killed = True  # its lease has ended, and it cannot get another
            child.kill()

    def _start(self, place: ChildPlace[Child]) -> Child:
        return Child(place.number, lambda pipe, memory: self._command(place.number, pipe, memory), self._events)

    def _handle_death(self, child: Child, code: int) -> None:
        now = time.monotonic()
        pause = next(place for place in self.places if place.child is child).vacate(now)
        started = child.started_deliveries()
        if code != 0:  # a process that drained has ended its own lease
            self._lease_cleanup.end_leases(child.pid, child.incarnations, started)
        if self.state == "draining":
            if not self.children:
                self._deadline = min(self._deadline, now + CLEANUP_SEC)
            return
        Log(pid=child.pid, number=child.number).error(
            "WORKER_DIED", how=describe_exit(code), after_sec=round(now - child.started_at, 1), next_in_sec=pause
        )

    def _status(self) -> str:
        if self.state == "starting":
            waits_for = self.opening.waits_for
            return "starting" if waits_for is None else f"waiting for the database: {waits_for}"
        if self.guardrail.tripped:
            return f"{self.state}; the database does not answer"
        working = sum(child.is_working for child in self.children)
        return f"{self.state}; {working} of {len(self.places)} worker processes"

    # ---------------------------------------------------------------------------------------------- ending

    def _stop(self, number: int) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if self.state != "draining":
            self.state = "draining"
            self._deadline = now + (self.settings.drain_grace_sec + MARGIN if self.children else CLEANUP_SEC)
            self._notify.stopping()
            Log(signal=name).warning("DRAINING", at_most_sec=self.settings.drain_grace_sec)
            self._workers_drain_at = now + DRAIN_SEC
            if self.serving is not None:
                self.serving.drain()
            self._drain_workers(now)
        elif self._exit_code is None:
            Log(signal=name).warning("EXITING_NOW")
            self._exit_code = 128 + number
            self._end_now(now)

    def _drain_workers(self, now: float) -> None:
        """Drains the worker processes once, after the serving ones: what these have accepted is stored by then."""
        if self._workers_drain_at is not None and (not self._serving_children or now >= self._workers_drain_at):
            self._workers_drain_at = None
            for child in self.children:
                child.drain()

    def _end_now(self, now: float) -> None:
        self._deadline = now + CLEANUP_SEC
        for child in (*self.children, *self._serving_children):
            child.was_killed = True
            child.kill()

    def _has_ended(self) -> bool:
        """Whether all processes are gone and their leases ended, or the time is up. Kills those not drained in time."""
        children = [*self.children, *self._serving_children]
        if not children and self._lease_cleanup.is_idle:
            return True
        now = time.monotonic()
        self._drain_workers(now)
        if now < self._deadline:
            return False
        if left := [child for child in children if not child.was_killed]:
            Log(pids=[child.pid for child in left]).error("NOT_DRAINED_IN_TIME")
            self._end_now(now)
            return False
        return True
