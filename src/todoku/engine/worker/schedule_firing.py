"""Firing schedules: a thread that looks when the next slot is, and publishes its message when it has come.

Every worker does it. A slot and the move to the next one are a single commit, so none is fired twice, and one that a
dying worker left is fired by another.
"""

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
from todoku.engine.http.request_schedules import spread
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.schedule import declare, decoded, firing
from todoku.engine.worker.worker_thread import OnFailure, thread
from todoku.store.schedules import Fired, Firing, ReadGroups, ScheduleRow
from todoku.store.store import Store

_EVERY: Final = 1.0
"""How often others' changes are looked for."""

_IDLE: Final = 5.0
"""How often, while there is no schedule at all."""

_BUSY: Final = 0.2
"""What is due and cannot be had is being fired by somebody else, or cannot be fired here."""

_ANNOUNCE: Final = 60.0
_AGAIN: Final = 60.0
"""After so long this worker tries again to fire what it could not."""


class Scheduling:
    """Declares what this worker's App has planned, and fires whatever is due in the database."""

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
        self._unable: dict[str, float] = {}
        self._firing = ""
        self._stopping = threading.Event()
        self._thread = thread("scheduling", self._run, on_failure)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a firing that is being made is awaited."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.announce()
                wait = self.fire_due()
            except StoreError as error:  # the heartbeat counts failures; the slot stays due
                Log().debug("DUTY_FAILED", duty="schedules", error=str(error))
                wait = _EVERY
            self._stopping.wait(wait)

    def announce(self) -> None:
        """At the start the plans are stored as they are here: who starts last is the newest. Then only their names."""
        now = time.monotonic()
        if self._announce_at is None:
            declare(self._store, self._plans)
        elif now >= self._announce_at:
            self._store.schedules.announce(tuple(self._plans))
        else:
            return
        self._announce_at = now + min(_ANNOUNCE, self._settings.unknown_after_sec / 3)

    def fire_due(self) -> float:
        """Fire what is due; returns how many seconds nothing will be."""
        look = self._store.schedules.look(after=self._settings.unknown_after_sec)
        if look.next is None or not self._settings.enabled:
            return _EVERY if look.any else _IDLE
        if look.next > look.now:
            return min(_EVERY, look.next - look.now)
        fired = False
        while not self._stopping.is_set() and self._fire():
            fired = True
        return 0.0 if fired else _BUSY

    def _fire(self) -> bool:
        """Fire one schedule. False: none is due here."""
        now = time.monotonic()
        self._unable = {name: until for name, until in self._unable.items() if until > now}
        settings = self._settings
        try:
            fired = self._store.schedules.fire(
                self._made,
                after=settings.unknown_after_sec,
                notify=settings.notify,
                but=tuple(self._unable),
            )
        except StoreError:
            raise
        except TodokuError as error:  # a plan that cannot be read here; others may be able to
            self._unable[self._firing] = now + _AGAIN
            self._store.schedules.failed(self._firing, error_text(str(error)))
            Log(schedule=self._firing).error("SCHEDULE_FAILED", error_type=type(error).__name__)
            return True
        if fired is not None:
            self._tell(fired)
        return fired is not None

    def _made(self, row: ScheduleRow, groups: ReadGroups) -> Firing:
        self._firing = row.name
        sealer = self._sealer
        made = firing(row, sealer.sealed, once_for=self._settings.ledger_ttl, masters=sealer.masters)
        drafts = spread(made.drafts, groups, sealer=sealer, body=decoded(row.spec).sealed)
        return msgspec.structs.replace(made, drafts=drafts)

    def _tell(self, fired: Fired) -> None:
        made = fired.firing
        self._telemetry.published(made.drafts, fired.messages)
        self._telemetry.fired(sum(not message.duplicate for message in fired.messages), made.passed)
        if made.passed:
            Log(schedule=fired.name).warning("SCHEDULE_MISSED", passed=made.passed, fired=len(made.slots))
        if made.drafts:
            self._on_fired()
