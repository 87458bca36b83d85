"""The supervisor: starts worker processes, replaces those that die, drains them, and knows how everything is.

One thread handles events one after the other and never waits for the database: what has to, has a thread of its own.
Nobody else changes its state; the HTTP thread only reads it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, Literal, assert_never

import msgspec

from todoku.core.settings import Settings
from todoku.daemon.children import AT_ONCE, Child, Died, Heard, how_it_ended, pause_before
from todoku.daemon.database_start import DatabaseOpened, DatabaseRefused, Opening
from todoku.daemon.guardrail import Guardrail, Pinger
from todoku.daemon.lease_cleanup import Undertaker
from todoku.daemon.pipe import Measured
from todoku.daemon.systemd import Notify
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Children
from todoku.engine.observability.telemetry import Telemetry
from todoku.store.port import Store

TICK: Final = 0.25
MARGIN: Final = 5.0
"""Worker processes end by themselves within the grace; so much later they are ended."""

LAST_ACTS: Final = 3.0
"""How long burials may take before the supervisor leaves."""

State = Literal["starting", "running", "draining"]


class Signalled(msgspec.Struct, frozen=True):
    """Somebody wants us to stop."""

    number: int


Event = Signalled | DatabaseOpened | DatabaseRefused | Heard | Died


class WorkerPlace:
    """One of the N places for a worker process: who is in it, and when the next one may be started."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.starts = 0
        self.quick_deaths = 0
        self.due = 0.0


class Supervisor:
    """See the module. `command(number, line, memory)` is how a worker process is started; both are descriptors."""

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
        self.places = tuple(WorkerPlace(number) for number in range(1, processes + 1)) if settings.enabled else ()
        self.metrics = Children()
        self.state: State = "starting"
        self.ticked = time.monotonic()
        self._command = command
        self._opened = opened
        self._notify = notify
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._pinger = Pinger(store.ping, self.guardrail, settings.guardrail_db_failures)
        self._undertaker = Undertaker(store, settings, telemetry)
        self._code: int | None = None
        self._ends = 0.0

    def run(self) -> int:
        """Until somebody sends SIGTERM or SIGINT; returns the exit code. A second signal ends everything now."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        self.opening.start(self._events)
        try:
            while True:
                self._next_event()
                self._tick()
                if self.state == "draining" and self._has_ended():
                    return self._code or 0
        finally:
            self._pinger.stop()
            for child in self.children:
                child.kill()

    @property
    def children(self) -> list[Child]:
        """The worker processes there are."""
        return [child for place in self.places if (child := place.child) is not None]

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._events.put(Signalled(number))  # may interrupt anything, even another put

    def _next_event(self) -> None:
        try:
            event = self._events.get(timeout=TICK)
        except Empty:
            return
        match event:
            case Signalled(number):
                self._stop(number)
            case DatabaseOpened():
                self._begin()
            case DatabaseRefused(error):
                raise error
            case Heard(child, said):
                child.hear(said)
                if isinstance(said, Measured):
                    self.metrics.record(child.pid, said.dump)
            case Died(child, code):
                self._mourn(child, code)
            case _:
                assert_never(event)

    # -------------------------------------------------------------------------------------- up and running

    def _begin(self) -> None:
        if self.state == "starting":
            self.state = "running"
            self._pinger.start()
            self._opened()

    def _tick(self) -> None:
        now = self.ticked = time.monotonic()
        self._pinger.look()
        if self.state == "running":
            for place in self.places:
                self._keep_filled(place, now)
            if not self.places or any(child.works for child in self.children):
                self._notify.ready()
        self._notify.status(self._status())
        self._notify.alive()

    def _keep_filled(self, place: WorkerPlace, now: float) -> None:
        child = place.child
        if child is None:
            if now >= place.due:
                place.child = self._start(place)
                place.starts += 1
        elif not child.condemned and (silent := now - child.heard_at) > self.settings.lease_sec + MARGIN:
            Log(pid=child.pid, number=child.number).error("WORKER_SILENT", seconds=round(silent))
            child.condemned = True  # its lease has ended, and it will not take another
            child.kill()

    def _start(self, place: WorkerPlace) -> Child:
        return Child(place.number, lambda line, memory: self._command(place.number, line, memory), self._events)

    def _mourn(self, child: Child, code: int) -> None:
        place = next(place for place in self.places if place.child is child)
        place.child = None
        self.metrics.retire(child.pid)
        started = child.last_started()
        if code != 0:  # one that drained has ended its lease itself
            self._undertaker.bury(child.pid, child.incarnations, started)
        now = time.monotonic()
        if self.state == "draining":
            if not self.children:
                self._ends = min(self._ends, now + LAST_ACTS)
            return
        place.quick_deaths = place.quick_deaths + 1 if now - child.began < AT_ONCE else 0
        pause = pause_before(place.quick_deaths)
        place.due = now + pause
        Log(pid=child.pid, number=child.number).error(
            "WORKER_DIED", how=how_it_ended(code), after_sec=round(now - child.began, 1), next_in_sec=pause
        )

    def _status(self) -> str:
        if self.state == "starting":
            waits_for = self.opening.waits_for
            return "starting" if waits_for is None else f"waiting for the database: {waits_for}"
        if self.guardrail.tripped:
            return f"{self.state}; the database does not answer"
        works = sum(child.works for child in self.children)
        return f"{self.state}; {works} of {len(self.places)} worker processes"

    # ---------------------------------------------------------------------------------------------- ending

    def _stop(self, number: int) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if self.state != "draining":
            self.state = "draining"
            self._ends = now + (self.settings.drain_grace_sec + MARGIN if self.children else LAST_ACTS)
            self._notify.stopping()
            Log(signal=name).warning("DRAINING", at_most_sec=self.settings.drain_grace_sec)
            for child in self.children:
                child.drain()
        elif self._code is None:
            Log(signal=name).warning("EXITING_NOW")
            self._code = 128 + number
            self._end_now(now)

    def _end_now(self, now: float) -> None:
        self._ends = now + LAST_ACTS
        for child in self.children:
            child.condemned = True
            child.kill()

    def _has_ended(self) -> bool:
        """Whether there is nothing left to wait for: everybody gone and buried, or the time is over."""
        children = self.children
        if not children and self._undertaker.idle:
            return True
        now = time.monotonic()
        if now < self._ends:
            return False
        if left := [child for child in children if not child.condemned]:
            Log(pids=[child.pid for child in left]).error("NOT_DRAINED_IN_TIME")
            self._end_now(now)
            return False
        return True
