"""What the row of a worker says of it: publishers give notice to idle workers only, because a notice costs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from todoku.core.errors import StoreError
from todoku.engine.worker.lease import Lease
from todoku.store.leases import WorkerState
from todoku.store.store import Store

_BUSY_AFTER: Final = 0.05
"""Seconds of continuous work after which the worker announces that it needs no notices."""

_PAUSE: Final = 0.004
"""Seconds with room and without work that interrupt continuous work. Below 250 transactions a second notices cost
publishers little, and a worker that gets them starts each message sooner than one that polls."""


class AnnouncedState:
    """The state that the claimer has written, and what it follows from: when work came, and when none did.

    The claimer's thread notes and writes; any thread may call `begin`, `forget` and `is_busy`.
    """

    def __init__(self, store: Store, lease: Lease, on_ambiguous: Callable[[], None]) -> None:
        self._store = store
        self._lease = lease
        self._on_ambiguous = on_ambiguous
        self._begun = False
        self._written: tuple[UUID, WorkerState] | None = None
        self._working_since: float | None = None
        self._resting_since: float | None = None
        self.idle_since = 0.0
        """When the row began to say "idle", by this process's monotonic clock."""

    def begin(self) -> None:
        """Writes states from now on."""
        self._begun = True

    def forget(self) -> None:
        """Makes the next state be written, whatever the last one was."""
        self._written = None

    def is_busy(self) -> bool:
        """Whether the worker has worked for a while without a pause: it looks for more work without notices."""
        now, since = time.monotonic(), self._working_since
        return since is not None and now - since >= _BUSY_AFTER and not self._rests(now)

    def says_idle(self) -> bool:
        """Whether the row says that the worker is idle, as far as the claimer knows."""
        return self._written == (self._lease.worker, "idle")

    def note_rest(self) -> None:
        """Notes that there was room, and no work."""
        if self._resting_since is None:
            self._resting_since = time.monotonic()

    def note_work(self) -> None:
        """Notes that work came. Announces that the worker needs no notices, once it is busy."""
        now = time.monotonic()
        if self._working_since is None or self._rests(now):
            self._working_since = now
        self._resting_since = None
        if self.is_busy():
            self._write("running")

    def announce_idle(self) -> bool:
        """Announces that the worker wants notices. False: it had announced it before, or could not."""
        if not self._write("idle"):
            return False
        self.idle_since = time.monotonic()
        return True

    def _rests(self, now: float) -> bool:
        since = self._resting_since  # read once: `is_busy` is asked by other threads
        return since is not None and now - since >= _PAUSE

    def _write(self, state: WorkerState) -> bool:
        """Writes the state to the worker's row, unless it was the last one written. True: it was written.

        The last state is forgotten with a new incarnation, and after a write whose reply was lost.
        """
        worker = self._lease.worker
        if not self._begun or self._written == (worker, state):
            return False
        self._written = None
        try:
            self._store.leases.set_state(worker, state)
        except StoreError:
            self._on_ambiguous()
            return False
        self._written = worker, state
        return True
