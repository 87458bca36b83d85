"""Periodic maintenance of the whole database, which every worker does: reclaim, expire, prune, announce the
destinations served here, and fire schedules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from todoku.core.errors import StoreError
from todoku.core.schedule import Plan
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Registry
from todoku.engine.worker.schedule_firing import Scheduler
from todoku.engine.worker.worker_thread import OnFailure, create_thread
from todoku.store.store import Store

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

    def _run(self) -> None:
        every = self._settings.reclaim_interval_sec
        duties: list[tuple[float, Callable[[], None]]] = [
            # First, so that `_expire` does not take this worker's deliveries for ones to unknown destinations.
            (min(_ANNOUNCE, self._settings.unknown_after_sec / 3), self._announce),
            (every, self._reclaim),
            (every * 2, self._expire),
            (every, self._follow),
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

    def _run_duty(self, duty: Callable[[], None]) -> None:
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
