"""The attending thread of a session: heartbeats, measurements, warnings, and the pages of snapshots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from todoku.capture.checks import find_warnings
from todoku.capture.pages import Pages
from todoku.capture.snapshot import Snapshots
from todoku.capture.source import SlotLag, SourceSession
from todoku.capture.start import Started
from todoku.capture.storing import FenceLost
from todoku.core.errors import CaptureError, StoreError
from todoku.engine.observability.log import Log
from todoku.store.captures import CaptureRow

if TYPE_CHECKING:
    from todoku.capture.session import SessionParts

_POLL: Final = 0.2
"""Seconds between two looks at transactions that a snapshot waits for."""


class SlotTooLarge(Exception):
    """The slot retains more of the source's log than the declaration allows."""

    def __init__(self, retained: int, bound: int) -> None:
        super().__init__(f"the slot retains {retained} bytes of the source's log, {bound} are allowed")
        self.retained = retained
        self.bound = bound


class Attendant:
    """Attends to the source while the stream is read."""

    def __init__(
        self, parts: SessionParts, row: CaptureRow, source: SourceSession, *, pages: Pages, snapshots: Snapshots,
        started: Started, on_failure: Callable[[], None],
    ) -> None:  # fmt: skip
        self._parts = parts
        self._row = row
        self._fence = row.fence
        self._source = source
        self._pages = pages
        self._snapshots = snapshots
        self._started = started
        self._on_failure = on_failure
        self._ended = False
        self._woken = threading.Event()
        self._state: str | None = None
        self._warned: tuple[str, ...] | None = None
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"todoku capture {row.name}: attend", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Lets the thread look at once: a page was stored."""
        self._woken.set()

    def stop(self) -> None:
        """Ends the thread, and cancels what it waits for at the source."""
        self._ended = True
        self._woken.set()
        if self._thread.ident is None:
            return
        self._thread.join(0.5)
        while self._thread.is_alive():
            self._source.cancel()
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            self._attend()
        except Exception as error:  # noqa: BLE001 - the reading thread raises it, unless it has ended the session itself
            self.failure = error
            self._on_failure()

    def _attend(self) -> None:
        options = self._parts.options
        beat_at = measure_at = 0.0
        while not self._ended:
            now = time.monotonic()
            if now >= beat_at:
                self._source.mark(self._pages.expect(None))
                beat_at = now + options.heartbeat
            if now >= measure_at:
                self._measure()
                measure_at = now + options.measure
            self._announce("streaming" if self._snapshots.is_done else "snapshot")
            if self._snapshots.step():
                continue
            wait = min(beat_at, measure_at) - time.monotonic()
            self._woken.wait(max(0.0, wait if self._snapshots.is_done else min(wait, _POLL)))
            self._woken.clear()

    def _announce(self, state: str) -> None:
        if self._state == state:
            return
        changed = self._parts.store.set_state(
            self._row.name, "streaming" if state == "streaming" else "snapshot", fence=self._fence
        )
        if changed and self._state is None:
            Log(capture=self._row.name).info("CAPTURE_STARTED", state=state, slot=self._row.slot)
        self._state = state

    def _measure(self) -> None:
        """Records how far the slot is, and what to warn of. SlotTooLarge: the guardrail."""
        lag, options = self._source.lag(self._row.slot), self._parts.options
        check_guardrail(lag, options.drop_slot_above)
        if self._source.publication(self._row.publication) != self._started.publication:
            raise CaptureError(
                f"the publication {self._row.publication} was changed", hint="it is compared before it goes on",
                reason="SOURCE_AWAY",
            )  # fmt: skip
        found = find_warnings(self._started.server, lag, self._row.slot, drop_slot_above=options.drop_slot_above)
        held = True
        try:
            if lag is not None:
                held = self._parts.store.measure(self._fence, behind=lag.behind, retained=lag.retained)
            if found != self._warned:
                self._parts.store.warn(self._fence, found)
                self._warned = found
        except StoreError as error:  # the storing thread finds out for itself whether the database is away
            Log(capture=self._row.name).warning("CAPTURE_NOT_MEASURED", error=str(error))
        if not held:  # an operator has begun it anew, or another worker reads: also if nothing is to be stored
            raise FenceLost


def check_guardrail(lag: SlotLag | None, bound: int | None) -> None:
    """SlotTooLarge: the slot retains more than the bound."""
    if lag is not None and bound is not None and lag.retained > bound:
        raise SlotTooLarge(lag.retained, bound)
