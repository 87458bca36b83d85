"""Periodic maintenance of the whole database, which every worker does: reclaim, expire, prune, announce the
destinations served here, and fire schedules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from todoku.core.errors import StoreError, TodokuError
from todoku.core.outcome import error_text
from todoku.core.schedule import Plan
from todoku.core.settings import Settings
from todoku.engine.encryption.sealer import Sealer
from todoku.engine.http.request_schedules import expand_groups
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Registry
from todoku.engine.schedule import declare, decoded, firing
from todoku.engine.worker.worker_thread import OnFailure, create_thread
from todoku.store.schedules import Fired, Firing, ReadGroups, ScheduleRow
from todoku.store.store import Store

# ------------------------------------------------------------
# Firing schedules: a thread that waits for the next slot and publishes its message.
#
# Every worker does it. Publishing a slot's message and moving to the next slot are a single commit, so no slot is fired
# twice, and one that a dying worker left is fired by another.

_INTERVAL: Final = 1.0
"""Seconds between two reads of the schedules, which other processes may change."""

_IDLE: Final = 5.0
"""Seconds between two reads while there is no schedule."""

_BUSY: Final = 0.2
"""Seconds to wait if a due schedule could not be fired: another worker fires it, or it cannot be fired here."""

_ANNOUNCE_SCHEDULES: Final = 60.0
_RETRY_AFTER: Final = 60.0
"""Seconds after which this worker tries again to fire a schedule that failed."""


class Scheduler:
    """Declares the schedules of this worker's App, and fires all due schedules of the database."""

    def __init__(
        self,
        store: Store,
        plans: Mapping[str, Plan],
        settings: Settings,
        telemetry: Telemetry,
        *,
        on_fired: Callable[[], None],
        on_failure: OnFailure,
    ) -> None:
        self._store = store
        self._plans = plans
        self._settings = settings
        self._telemetry = telemetry
        self._sealer = Sealer(settings)
        self._on_fired = on_fired
        self._announce_at: float | None = None
        self._failed_until: dict[str, float] = {}
        self._firing = ""
        self._stopping = threading.Event()
        self._thread = create_thread("scheduling", self._run, on_failure)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; a firing in progress is awaited."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.announce()
                wait = self.fire_due()
            except StoreError as error:  # the heartbeat counts failures; the slot stays due
                Log().debug("DUTY_FAILED", duty="schedules", error=str(error))
                wait = _INTERVAL
            self._stopping.wait(wait)

    def announce(self) -> None:
        """Stores the plans at the start (the process that starts last wins); later announces only their names."""
        now = time.monotonic()
        if self._announce_at is None:
            declare(self._store, self._plans)
        elif now >= self._announce_at:
            self._store.schedules.announce(tuple(self._plans))
        else:
            return
        self._announce_at = now + min(_ANNOUNCE_SCHEDULES, self._settings.unknown_after_sec / 3)

    def fire_due(self) -> float:
        """Fires all due schedules. Returns the seconds to wait until the next call."""
        look = self._store.schedules.read_next_slot(after=self._settings.unknown_after_sec)
        if look.next is None or not self._settings.enabled:
            return _INTERVAL if look.any else _IDLE
        if look.next > look.now:
            return min(_INTERVAL, look.next - look.now)
        fired = False
        while not self._stopping.is_set() and self._fire():
            fired = True
        return 0.0 if fired else _BUSY

    def _fire(self) -> bool:
        """Fires one schedule. False: none is due that this worker can fire."""
        now = time.monotonic()
        self._failed_until = {name: until for name, until in self._failed_until.items() if until > now}
        settings = self._settings
        try:
            fired = self._store.schedules.fire(
                self._build_firing,
                after=settings.unknown_after_sec,
                notify=settings.notify,
                skip=tuple(self._failed_until),
            )
        except StoreError:
            raise
        except TodokuError as error:  # this worker cannot read the plan; another one may
            self._failed_until[self._firing] = now + _RETRY_AFTER
            self._store.schedules.record_failure(self._firing, error_text(str(error)))
            Log(schedule=self._firing).error("SCHEDULE_FAILED", error_type=type(error).__name__)
            return True
        if fired is not None:
            self._report(fired)
        return fired is not None

    def _build_firing(self, row: ScheduleRow, groups: ReadGroups) -> Firing:
        self._firing = row.name
        sealer = self._sealer
        built = firing(row, sealer.seal, once_for=self._settings.ledger_ttl, masters=sealer.masters)
        drafts = expand_groups(built.drafts, groups, sealer=sealer, body=decoded(row.spec).sealed)
        return msgspec.structs.replace(built, drafts=drafts)

    def _report(self, fired: Fired) -> None:
        built = fired.firing
        self._telemetry.published(built.drafts, fired.messages)
        self._telemetry.fired(sum(not message.duplicate for message in fired.messages), built.passed)
        if built.passed:
            Log(schedule=fired.name).warning("SCHEDULE_MISSED", passed=built.passed, fired=len(built.slots))
        if built.drafts:
            self._on_fired()


_ANNOUNCE: Final = 60.0
_PRUNE: Final = 3600.0


class Maintainer:
    """A thread with a few duties, each at its own interval. Several workers may do the same duty concurrently."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        telemetry: Telemetry,
        *,
        chance: Callable[[], float],
        on_failure: OnFailure,
        plans: Mapping[str, Plan],
        on_fired: Callable[[], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._settings = settings
        self._telemetry = telemetry
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = create_thread("maintainer", self._run, on_failure)
        # In its own thread: a schedule must not wait while a large table is pruned.
        self._scheduling = Scheduler(store, plans, settings, telemetry, on_fired=on_fired, on_failure=on_failure)

    def start(self) -> None:
        """Starts the threads."""
        self._thread.start()
        self._scheduling.start()

    def stop(self) -> None:
        """Stops the threads; a running duty is awaited."""
        self._stopping.set()
        self._scheduling.stop()
        self._thread.join()

    def run_duties_of_app(self) -> None:
        """Runs the duties that the App has added, once, for a worker that ends when it is idle."""
        for duty in self._registry.duties:
            self._run_duty(duty)

    def _run(self) -> None:
        every = self._settings.reclaim_interval_sec
        duties: list[tuple[float, Callable[[], object]]] = [
            # First, so that `_expire` does not take this worker's deliveries for ones to unknown destinations.
            (min(_ANNOUNCE, self._settings.unknown_after_sec / 3), self._announce),
            (every, self._reclaim),
            (every * 2, self._expire),
            (every, self._follow),
            *((every, duty) for duty in self._registry.duties),
            (_PRUNE, self._prune),
        ]
        due = [0.0] * len(duties[:-1]) + [time.monotonic() + _PRUNE * self._chance()]
        while not self._stopping.is_set():
            now = time.monotonic()
            for place, (interval, duty) in enumerate(duties):
                if now >= due[place] and not self._stopping.is_set():
                    # With jitter: workers that run at the same moment would wait for each other's locks.
                    due[place] = now + interval * (0.9 + 0.2 * self._chance())
                    self._run_duty(duty)
            self._stopping.wait(max(0.01, min(due) - time.monotonic()))

    def _run_duty(self, duty: Callable[[], object]) -> None:
        try:
            duty()
        except StoreError as error:  # the heartbeat counts failures; the duty runs again at its next interval
            Log().debug("DUTY_FAILED", duty=duty.__name__.strip("_"), error=str(error))

    def _reclaim(self) -> None:
        found = self._store.leases.reclaim(max_lost=self._settings.max_lost)
        if found.workers or found.freed or found.aborted:
            self._telemetry.reclaimed(found)
            Log().warning("RECLAIMED", workers=found.workers, freed=found.freed, aborted=found.aborted)

    def _expire(self) -> None:
        late, unknown = self._store.retention.expire(unknown_after=self._settings.unknown_after_sec)
        self._telemetry.expired(late, unknown)

    def _follow(self) -> None:
        self._store.follow_batches()

    def _announce(self) -> None:
        self._store.destinations.announce(self._registry.names)
        self._store.announce_hooks(self._registry.hooks)

    def _prune(self) -> None:
        self._store.retention.prune(history_ttl=self._settings.history_ttl)
