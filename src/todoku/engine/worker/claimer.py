"""2a. When to claim, and how much: as many as the pools can start soon, after each notice and at every poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.http_request import served_as
from todoku.core.message import Claimed
from todoku.engine.claim import ClaimCursor, SharedWaiting
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.worker.announced_state import AnnouncedState
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.limits import RATE_POLL_SEC, ClaimLimits
from todoku.engine.worker.pool import Pool, group_lanes
from todoku.engine.worker.worker_thread import OnFailure, create_thread
from todoku.store.limits import UNCOUNTED, Counted
from todoku.store.store import Store

_SHORTEST_WAIT: Final = 0.001
_IDLE_AFTER: Final = 0.008
"""Seconds without work after which the worker announces that it is idle and wants notices."""

_OWED_LOOK: Final = 0.004
"""Seconds after a message of few within which the look that is still owed begins. The settle of a short attempt ends
sooner and wakes the claimer, so one look does for both; meanwhile the message has the processor for itself."""

_FIRST_WAIT: Final = 0.016
"""Seconds until the first poll after work came by a notice. Polls find what is due without one: retries, snoozes."""

_LANES: Final = 50
_GATES: Final = 50
_EMPTYING: Final = 10.0
"""Seconds for which the claimer stops claiming, so that the worker holds nothing when a suspect runs. If it still holds
something after that, the claimer tries again a minute later."""


class Claimer:
    """The one thread of a worker that claims."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        hold: HeldDeliveries,
        limiting: ClaimLimits,
        pools: Sequence[Pool],
        telemetry: Telemetry,
        *,
        poll_interval: float,
        give_back: Callable[[list[Claimed]], None],
        may_claim: Callable[[], bool],
        on_ambiguous: Callable[[], None],
        on_failure: OnFailure,
        on_idle: Callable[[], None] | None = None,
        serves_runs: bool = False,
        listable: Collection[str] = (),
    ) -> None:
        self._store = store
        self._lease = lease
        self._hold = hold
        self._limiting = limiting
        self._pools = pools
        self._telemetry = telemetry
        self._poll_interval = poll_interval
        self._give_back = give_back
        self._may_claim = may_claim
        self._on_ambiguous, self._on_idle, self._listable = on_ambiguous, on_idle, listable
        self._event = threading.Event()
        self._stopping = self._unsure = self._noticed = self._has_room = False
        self._wait = _SHORTEST_WAIT
        self._state = AnnouncedState(store, lease, on_ambiguous)
        self._turn = 0
        self._next_suspect = 0.0
        self._cursors: dict[str, ClaimCursor] = {}
        self._shared_waiting = SharedWaiting(store, [pool.destinations for pool in pools], serves_runs=serves_runs)
        self._needs_slot = True
        self._thread = create_thread("claimer", self._run, on_failure)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def poke(self) -> None:
        """Wakes the claimer: an attempt was settled, or a queue was resumed."""
        if not self._event.is_set():  # if the thread clears it after this check, its next round sees the change
            self._event.set()

    def slot_freed(self) -> None:
        """Wakes the claimer if its last round could have claimed more with another slot."""
        if self._needs_slot:
            self.poke()

    def announce(self) -> None:
        """Writes this worker's state from now on: publishers send notices to idle workers only."""
        self._state.begin()
        self._event.set()

    def notice(self) -> None:
        """Makes the next round scan everything once, because a publisher gave notice of new work."""
        self._noticed = True
        self._event.set()

    def is_busy(self) -> bool:
        """Whether the worker has worked for a while without a pause: it looks for more work without notices."""
        return self._state.is_busy()

    def resume(self) -> None:
        """Scans everything at once, because an operator let the worker claim again; its state is written anew."""
        self._state.forget()
        self.notice()

    def stop(self) -> None:
        """Stops the thread. A claim in flight is awaited and given back; none begins afterwards (H10)."""
        self._stopping = True
        self._event.set()
        self._thread.join()

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopping:
            self._event.clear()
            found = self._round() if self._may_claim() else 0
            if found:
                self._state.note_work()
                self._wait = self._first_wait()
                if self._state.says_idle():  # few messages: let the event loop start this one before the next look
                    for cursor in self._cursors.values():
                        cursor.look_next()
                    self._event.wait(_OWED_LOOK)
                continue
            if self._has_room:
                self._state.note_rest()
            if self._is_idle():
                return
            if self._wait >= _IDLE_AFTER and self._has_room and self._may_claim() and self._announce_sleep():
                continue
            woken = self._event.wait(min(self._wait, self._longest_wait()))
            # The wake-up may mean that a place at a limit is free. The claim that looks for it skips rows that other
            # workers have locked for a moment, so look again soon.
            self._wait = (
                _SHORTEST_WAIT if woken and self._may_be_limited() else min(self._wait * 2, self._poll_interval)
            )

    def _may_be_limited(self) -> bool:
        return self._limiting.has_limits or any(cursor.has_gates for cursor in self._cursors.values())

    def _longest_wait(self) -> float:
        """Returns the longest wait. No notice comes when a rate allows more, or when a gate's time has come."""
        now, longest = time.monotonic(), RATE_POLL_SEC if self._limiting.has_rate else self._poll_interval
        coming = [at - now for cursor in self._cursors.values() if (at := cursor.next_gate) > now]
        return max(_SHORTEST_WAIT, min([longest, *coming]))

    def _round(self) -> int:
        found, is_full = 0, False
        self._needs_slot = True  # before the pools are asked: a slot may become free meanwhile
        self._has_room = False  # while every pool is full, notices are not wanted
        self._shared_waiting.invalidate()
        if self._noticed:
            self._noticed = False  # before the scan: a notice that comes later counts for the next round
            for cursor in self._cursors.values():
                cursor.request_scan()
        for pool in self._pools:
            if self._stopping or not self._limiting.allowed(1) or (found and self._state.says_idle()):
                break  # few messages: the event loop starts this one, and the next round comes within `_OWED_LOOK`
            wanted = pool.pace.wanted(occupied=pool.occupied(), waiting=pool.waiting(), now=time.monotonic())
            if wanted:
                self._has_room = True
                found += self._claim(pool, self._limiting.allowed(wanted), busy=found > 0)
            elif self._limiting.most is None:
                found += self._claim_limited(pool)
            is_full = is_full or not wanted
            if self._cursor(pool).has_suspects and time.monotonic() >= self._next_suspect:
                found += self._run_suspects(pool)
        self._needs_slot = is_full or self._may_be_limited()
        return found

    def _cursor(self, pool: Pool) -> ClaimCursor:
        """Returns the cursor of a pool. It belongs to one incarnation of the worker; a new one starts afresh."""
        cursor, worker = self._cursors.get(pool.name), self._lease.worker
        if cursor is None or cursor.worker != worker:
            cursor = self._cursors[pool.name] = ClaimCursor(
                self._store, worker, pool.destinations, monotonic=time.monotonic,
                shared=self._shared_waiting, room=self._limiting.room, per_key=self._limiting.per_key,
                listable=self._listable,
            )  # fmt: skip
        return cursor

    def _claim(self, pool: Pool, wanted: int, *, busy: bool = False) -> int:
        """Claims up to `wanted`, shared between lanes, gates and other deliveries so that none of them starves."""
        cursor = self._cursor(pool)
        self._turn += 1
        parts = max(1, cursor.has_other_work + cursor.has_lanes + cursor.has_gates)
        working = any(other.waiting() for other in self._pools if other is not pool)
        from_lanes = self._claim_lanes(pool, cursor, (wanted + self._turn % parts) // parts)
        for_gates = (wanted + (self._turn + 1) % parts) // parts if cursor.has_gates else 0
        found = from_lanes + self._claim_gates(pool, cursor, for_gates)
        if found < wanted:
            counted = self._counted(pool)
            found += len(self._claim_and_hold(
                pool, lambda: cursor.claim(wanted - found, counted=counted, busy=busy, working=working)
            ))  # fmt: skip
        if found < wanted and not from_lanes:  # the scan above may have found lanes or gates
            found += self._claim_lanes(pool, cursor, wanted - found)
        if found < wanted and not for_gates:
            found += self._claim_gates(pool, cursor, wanted - found)
        return found

    def _claim_limited(self, pool: Pool) -> int:
        """Claims limited deliveries although the pool is full: they must not queue behind unlimited ones, and the
        other workers may be just as busy."""
        cursor = self._cursor(pool)
        found = self._claim_gates(pool, cursor, pool.slots)
        if self._limiting.has_limits and (counted := self._counted(pool)).most:
            found += len(self._claim_and_hold(pool, lambda: cursor.claim_counted(counted.most, counted=counted)))
        return found

    def _counted(self, pool: Pool) -> Counted:
        return self._limiting.counted(self._startable(pool)) if self._limiting.has_limits else UNCOUNTED

    def _startable(self, pool: Pool) -> int:
        """Returns how many limited deliveries can start soon: one per free slot, or one if no slot is free."""
        names = pool.destinations

        def counts(claim: Claimed) -> bool:
            here = claim.destination in names or served_as(claim.destination) in names
            return here and self._limiting.is_limited(claim)

        held = self._hold.count_matching(counts)
        return max(0, min(max(pool.slots - pool.running(), 1) - pool.waiting_limited(), pool.slots - held))

    def _claim_gates(self, pool: Pool, cursor: ClaimCursor, most: int) -> int:
        startable = self._startable(pool) if most and cursor.has_gates else 0
        if not startable:
            return 0
        counted, limit = self._limiting.counted(startable), min(most, startable)
        return len(self._claim_and_hold(pool, lambda: cursor.claim_gates(gates=_GATES, limit=limit, counted=counted)))

    def _claim_lanes(self, pool: Pool, cursor: ClaimCursor, most: int) -> int:
        if not most or not cursor.has_lanes:
            return 0
        counted, lanes = self._counted(pool), max(_LANES, pool.pace.batch)  # a batch has one delivery of each lane
        claims = self._claim_and_hold(
            pool, lambda: cursor.claim_lanes(lanes=lanes, limit=most, counted=counted), feed=False
        )
        if claims and claims[0].lost and len(self._hold) > len(claims):
            self._give_back(claims)  # a suspect, whose owner died: it runs when nothing else is held
            self._next_suspect = 0.0
            return self._run_suspects(pool)
        self._feed(pool, claims)
        return len(claims)

    def _claim_and_hold(self, pool: Pool, claim: Callable[[], list[Claimed]], *, feed: bool = True) -> list[Claimed]:
        """Claims and registers the result as held, before the heartbeat compares held with owned deliveries (H3)."""
        began = time.monotonic()
        try:
            with self._hold.claim_lock:
                claims = self._limiting.with_attempts(claim())
                self._hold.add(claims)
        except (DatabaseUnavailable, DatabaseBusy):
            self._unsure = True
            self._on_ambiguous()
            self._wait = max(self._wait, 0.1)
            return []
        except StoreError as error:
            Log().error("CLAIM_REFUSED", error=str(error))
            self._wait = self._poll_interval
            return []
        if not claims:
            return claims
        self._telemetry.claimed(claims, seconds=time.monotonic() - began)
        if self._stopping or not self._may_claim():
            self._give_back(claims)
            return []
        if feed:
            self._feed(pool, claims)
        return claims

    def _feed(self, pool: Pool, claims: list[Claimed]) -> None:
        if claims and (self._limiting.has_limits or claims[0].gate is not None):
            pool.feed(group_lanes([claim for claim in claims if self._limiting.is_limited(claim)]), is_limited=True)
            claims = [claim for claim in claims if not self._limiting.is_limited(claim)]
        if claims:
            pool.feed(group_lanes(claims))

    def _run_suspects(self, pool: Pool) -> int:
        """Runs deliveries whose owner died, one at a time: the worker holds nothing else meanwhile (H6)."""
        if not self._wait_until_empty(_EMPTYING):
            self._next_suspect = time.monotonic() + 60.0
            return 0
        found = 0
        while not self._stopping and self._may_claim() and self._limiting.allowed(1):
            cursor = self._cursor(pool)
            counted = self._limiting.counted(1)
            claims = self._claim_and_hold(pool, lambda: cursor.claim_suspect(counted=counted))  # noqa: B023 - runs at once
            if not claims and cursor.has_lanes:
                claims = self._claim_and_hold(pool, lambda: cursor.claim_lanes(lanes=1, limit=1, counted=counted))  # noqa: B023
            if not claims:
                self._next_suspect = time.monotonic() + 1.0
                break
            found += len(claims)
            self._wait_until_empty(None)
            if not claims[0].lost:
                break
        return found

    def _wait_until_empty(self, seconds: float | None) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(self._hold) and not self._stopping:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._event.wait(0.05)
            self._event.clear()
        return not self._stopping

    def _is_idle(self) -> bool:
        """Whether a worker with `until_idle` has nothing left to do; if so, calls `on_idle`."""
        if self._on_idle is None or len(self._hold) or not self._may_claim():
            return False
        self._shared_waiting.invalidate()  # an attempt that ended meanwhile may have published something
        self._unsure = False
        if self._limiting.allowed(1) and any(self._scan_finds_work(pool) for pool in self._pools):
            return False
        if len(self._hold) or self._unsure or not self._may_claim():  # a scan that failed proves nothing
            return False
        self._on_idle()
        return True

    def _scan_finds_work(self, pool: Pool) -> bool:
        """Scans everything once more without remembered positions. Whether anything was claimed."""
        self._cursors.pop(pool.name, None)
        self._next_suspect = 0.0
        if self._claim(pool, self._limiting.allowed(pool.slots)):
            return True
        cursor = self._cursor(pool)
        return (cursor.has_suspects or cursor.has_lanes) and bool(self._run_suspects(pool))

    def _announce_sleep(self) -> bool:
        """Announces that this worker is idle. True: the state was written, so the claimer scans once more first.

        Messages committed before the write gave no notice: the next round scans everything. A publisher that commits
        after it may have looked for idle workers before: poll soon, so that its message does not wait long (H25).
        """
        if not self._state.announce_idle():
            return False
        self._noticed = True
        self._wait = _SHORTEST_WAIT
        return True

    def _first_wait(self) -> float:
        """Returns how long to wait at first when no more work is found.

        While the worker's row says "idle", publishers give notice, but for those that looked at it before it said so:
        their messages wait no longer than it has said so (H25). Who frees a place at a limit gives none.
        """
        if not self._state.says_idle() or self._may_be_limited():
            return _SHORTEST_WAIT
        return min(max(_SHORTEST_WAIT, time.monotonic() - self._state.idle_since), _FIRST_WAIT, self._poll_interval)
