"""4. Settle: writes the outcomes of many attempts in one transaction, repeated until the database accepts it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from todoku.core.backoff import DEFAULT
from todoku.core.decision import SUCCEEDED, Settlement, decide
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.message import Claimed
from todoku.core.outcome import DONE
from todoku.core.status import Status
from todoku.engine.execute import Finished
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry
from todoku.engine.registry import Registry
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.worker_thread import OnFailure, create_thread
from todoku.store.settlement import RunTimes
from todoku.store.store import Store

BATCH: Final = 500
"""Outcomes in one transaction; larger ones were measured to be slower."""

SQLITE_BATCH: Final = 4 * BATCH
"""The same on SQLite, where a commit waits for the disk five times, whatever is in it (decision 4)."""

_LONGEST_WAIT: Final = 1.0
_DELAY: Final = 0.05
"""Seconds between two settles of outcomes that may be delayed: a small transaction costs as much as a large one."""

_LOOK: Final = 0.002
"""Seconds after which a settler that waits looks again whether its batch is full: who puts an outcome does not say."""


class Settler:
    """The one thread of a worker that settles and gives back deliveries. Attempts may end in any thread."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        telemetry: Telemetry,
        hold: HeldDeliveries,
        *,
        chance: Callable[[], float],
        on_ended: Callable[[Sequence[Finished]], None],
        on_settled: Callable[[], None],
        on_failure: OnFailure,
        may_settle_late: Callable[[Claimed], bool],
    ) -> None:
        self._store = store
        self._registry = registry
        self._telemetry = telemetry
        self._hold = hold
        self._chance = chance
        self._on_ended = on_ended
        self._on_settled = on_settled
        self._may_settle_late = may_settle_late
        self._batch = SQLITE_BATCH if store.database.dialect == "sqlite" else BATCH
        self._settled_at = 0.0
        self._finished: deque[Finished] = deque()
        self._to_release: deque[tuple[list[Claimed], float]] = deque()
        self._writes: deque[Callable[[], object]] = deque()
        self._asleep = False
        self._work = threading.Event()
        self._stopping = False
        self._abandoned = threading.Event()
        self._thread = create_thread("settler", self._run, on_failure)
        self.settled = 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, finished: Finished) -> None:
        """Queues an ended attempt. Cheap: the settler is woken only if it sleeps."""
        self._finished.append(finished)
        if self._asleep:
            self._asleep = False  # one wake-up is enough
            self._work.set()

    def give_back(self, claims: list[Claimed], *, delay: float = 0.0) -> None:
        """Queues claims that never started for release; the attempt is not counted."""
        if claims:
            self._to_release.append((claims, delay))
            self._work.set()

    def later(self, write: Callable[[], object]) -> None:
        """Queues a small write that is not urgent. A failure is logged and not repeated."""
        self._writes.append(write)
        self._work.set()

    def stop(self, *, grace: float) -> bool:
        """Settles the queued outcomes, then stops. False: the database did not accept them in time; a reclaim will
        free their deliveries."""
        self._stopping = True
        self._work.set()
        self._thread.join(timeout=grace)
        self._abandoned.set()
        return not self._thread.is_alive()

    # -------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            if not self._has_work():
                if self._stopping:
                    return
                self._sleep()
                continue
            while self._writes:
                self._write(self._writes.popleft())
            while self._to_release:
                self._release(*self._to_release.popleft())
            if self._finished:
                self._wait_for_more()
                number = min(len(self._finished), self._batch)
                self._settle([self._finished.popleft() for _ in range(number)])

    def _wait_for_more(self) -> None:
        """Waits a moment for more outcomes, if the last settle was just now and all of these may be delayed.

        Not if everything that the worker holds has ended, and not while something else is to be written.
        """
        looked = 0
        while (left := self._settled_at + _DELAY - time.monotonic()) > 0 and not self._stopping:
            number = len(self._finished)
            if number >= min(self._batch, len(self._hold)) or self._to_release or self._writes:
                return
            # By their places: only this thread removes outcomes, but others add some meanwhile.
            if not all(self._may_settle_late(self._finished[place].claim) for place in range(looked, number)):
                return
            looked = number
            self._work.clear()
            self._work.wait(min(left, _LOOK))

    def _has_work(self) -> bool:
        return bool(self._finished or self._to_release or self._writes)

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except StoreError as error:
            Log().warning("WRITE_FAILED", error=str(error))

    def _sleep(self) -> None:
        self._asleep = True
        if not self._has_work() and not self._stopping:
            self._work.wait()
        self._asleep = False
        self._work.clear()

    def _settle(self, batch: list[Finished]) -> None:
        self._on_ended(batch)  # now: the next claim is to know how fast these were before they are written
        ended = [self._decide(finished) for finished in batch]
        began = time.monotonic()
        lost: set[tuple[int, int]] = set()
        pairs = [
            (end.claim, end.settlement) for finished, end in zip(batch, ended, strict=True) if not finished.settled
        ]
        run_ms = {finished.claim.id: int((finished.ended - finished.started) * 1000) for finished in batch}
        for some in _split_by_worker(pairs):
            lost |= {(claim.id, claim.epoch) for claim in self._settle_until_accepted(some, run_ms)}
        seconds = time.monotonic() - began
        kept = [end for end in ended if (end.claim.id, end.claim.epoch) not in lost] if lost else ended
        self.settled += len(kept)  # before they leave `_hold`: the worker's limit adds both numbers
        self._hold.remove(finished.claim for finished in batch)
        self._telemetry.settled(kept, seconds=seconds)
        if lost:
            self._telemetry.lost([end.claim for end in ended if (end.claim.id, end.claim.epoch) in lost])
        for finished, end in zip(batch, ended, strict=True):
            if finished.span is not None:
                self._telemetry.end(finished.span, end, lost=(end.claim.id, end.claim.epoch) in lost)
        self._on_settled()
        self._settled_at = time.monotonic()

    def _decide(self, finished: Finished) -> EndedAttempt:
        outcome = finished.outcome
        if outcome is DONE and (finished.claim.key_hash is None or not self._is_run(finished.claim)):
            outcome = SUCCEEDED  # a fast path for most attempts: the same as `decide` returns
        elif not isinstance(outcome, Settlement):
            target = self._registry.get(finished.claim.destination)
            backoff = DEFAULT if target is None else target.backoff
            outcome = decide(finished.claim, outcome, backoff=backoff, jitter=self._chance())
            if finished.traceback is not None and outcome.status is not Status.SUCCEEDED and not outcome.snoozed:
                outcome = msgspec.structs.replace(outcome, traceback=finished.traceback)
            if target is not None and target.context is not None:
                outcome = msgspec.structs.replace(outcome, is_run=True)
        return EndedAttempt(
            finished.claim, outcome, finished.started, finished.ended, finished.error_type, finished.bound
        )

    def _is_run(self, claim: Claimed) -> bool:
        target = self._registry.get(claim.destination)
        return target is not None and target.context is not None

    def _settle_until_accepted(self, pairs: list[tuple[Claimed, Settlement]], run_ms: RunTimes) -> list[Claimed]:
        """Settles until the database accepts it. Returns the deliveries this worker no longer owned.

        Repeating is harmless: a token (id, epoch, worker) works once.
        """
        lost: list[Claimed] = []
        wait = 0.02
        while pairs:
            try:
                report = self._store.claims.settle(pairs, run_ms)
                lost += report.lost
                stuck = {claim.id for claim in report.stuck}
                pairs = [pair for pair in pairs if pair[0].id in stuck]
                if not pairs:
                    break
            except (DatabaseUnavailable, DatabaseBusy):
                pass  # the heartbeat counts and logs it; the outcomes stay in memory
            except StoreError as error:
                return lost + self._settle_halves(pairs, run_ms, error)
            if self._abandoned.wait(wait * (0.5 + self._chance())):
                return lost + [claim for claim, _ in pairs]
            wait = min(wait * 2, _LONGEST_WAIT)
        return lost

    def _settle_halves(
        self, pairs: list[tuple[Claimed, Settlement]], run_ms: RunTimes, error: StoreError
    ) -> list[Claimed]:
        """Halves a batch that the database refuses until the refused row is alone, so that the others are settled."""
        if len(pairs) > 1:
            middle = len(pairs) // 2
            one, other = pairs[:middle], pairs[middle:]
            return self._settle_until_accepted(one, run_ms) + self._settle_until_accepted(other, run_ms)
        ((claim, _),) = pairs
        Log(outbox_id=claim.id, adapter=claim.destination).error("SETTLE_REFUSED", error=str(error))
        return [claim]  # no longer held: the heartbeat's next comparison releases it, and it runs again

    def _release(self, claims: list[Claimed], delay: float) -> None:
        wait = 0.02
        for worker in {claim.worker for claim in claims}:
            ours = [claim for claim in claims if claim.worker == worker]
            while True:
                try:
                    self._store.claims.release(ours, delay=delay)
                    break
                except (DatabaseUnavailable, DatabaseBusy):
                    if self._abandoned.wait(wait):
                        break
                    wait = min(wait * 2, _LONGEST_WAIT)
        self._hold.remove(claims)
        self._on_settled()


def _split_by_worker(pairs: list[tuple[Claimed, Settlement]]) -> list[list[tuple[Claimed, Settlement]]]:
    """Splits pairs by owner: a new incarnation of the worker may have begun in between."""
    if not pairs:
        return []
    first = pairs[0][0].worker
    if not [claim for claim, _ in pairs if claim.worker is not first]:
        return [pairs]
    workers = dict.fromkeys(claim.worker for claim, _ in pairs)
    return [[pair for pair in pairs if pair[0].worker == worker] for worker in workers]
