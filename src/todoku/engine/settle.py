"""4. Settle: outcomes of many attempts in one transaction, repeated until the database has taken them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from todoku.core.backoff import DEFAULT
from todoku.core.decision import SUCCEEDED, Settlement, decide
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.message import Claimed
from todoku.core.outcome import DONE
from todoku.engine.execute import Finished
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry
from todoku.engine.registry import Registry
from todoku.engine.worker.held_deliveries import Hold
from todoku.engine.worker.worker_thread import OnFailure, thread
from todoku.store.store import Store

BATCH: Final = 500
"""Larger transactions were measured to be slower."""

_LONGEST_WAIT: Final = 1.0
_APART: Final = 0.02
"""Seconds between two settles of what nobody waits for: a few outcomes at a time cost as much as many."""


class Settler:
    """The one thread of a worker that settles and gives back. Attempts end in any thread."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        telemetry: Telemetry,
        hold: Hold,
        *,
        chance: Callable[[], float],
        on_settled: Callable[[Sequence[Finished]], None],
        on_failure: OnFailure,
        patient: Callable[[Claimed], bool],
    ) -> None:
        self._store = store
        self._registry = registry
        self._telemetry = telemetry
        self._hold = hold
        self._chance = chance
        self._on_settled = on_settled
        self._patient = patient
        self._settled_at = 0.0
        self._finished: deque[Finished] = deque()
        self._unwanted: deque[tuple[list[Claimed], float]] = deque()
        self._writes: deque[Callable[[], object]] = deque()
        self._asleep = False
        self._work = threading.Event()
        self._stopping = False
        self._abandoned = threading.Event()
        self._thread = thread("settler", self._run, on_failure)
        self.settled = 0

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def put(self, finished: Finished) -> None:
        """An attempt ended. Cheap: the settler is woken only if it sleeps."""
        self._finished.append(finished)
        if self._asleep:
            self._asleep = False  # said once is enough
            self._work.set()

    def give_back(self, claims: list[Claimed], *, delay: float = 0.0) -> None:
        """These never started: release them, with their attempt back."""
        if claims:
            self._unwanted.append((claims, delay))
            self._work.set()

    def later(self, write: Callable[[], object]) -> None:
        """A small write that is not urgent, made by this thread; what fails is said and not repeated."""
        self._writes.append(write)
        self._work.set()

    def stop(self, *, grace: float) -> bool:
        """Settle what has ended, then stop. False: the database did not take it in time; reclaim will."""
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
            while self._unwanted:
                self._release(*self._unwanted.popleft())
            if self._finished:
                self._gather()
                number = min(len(self._finished), BATCH)
                self._settle([self._finished.popleft() for _ in range(number)])

    def _gather(self) -> None:
        """Wait for more, if the last settle was only just made and nobody waits for any of these."""
        left = self._settled_at + _APART - time.monotonic()
        if left <= 0 or self._stopping or len(self._finished) >= BATCH:
            return
        if all(self._patient(one.claim) for one in self._finished.copy()):
            self._work.clear()
            self._work.wait(left)

    def _has_work(self) -> bool:
        return bool(self._finished or self._unwanted or self._writes)

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
        ended = [self._ended(one) for one in batch]
        began = time.monotonic()
        lost: set[tuple[int, int]] = set()
        pairs = [(end.claim, end.settlement) for one, end in zip(batch, ended, strict=True) if not one.settled]
        for some in _by_worker(pairs):
            lost |= {(claim.id, claim.epoch) for claim in self._until_taken(some)}
        took = time.monotonic() - began
        kept = [end for end in ended if (end.claim.id, end.claim.epoch) not in lost] if lost else ended
        self.settled += len(kept)  # before it is not held any more: a limit counts both
        self._hold.remove(one.claim for one in batch)
        self._telemetry.settled(kept, seconds=took)
        if lost:
            self._telemetry.lost([end.claim for end in ended if (end.claim.id, end.claim.epoch) in lost])
        for one, end in zip(batch, ended, strict=True):
            if one.span is not None:
                self._telemetry.end(one.span, end, lost=(end.claim.id, end.claim.epoch) in lost)
        self._on_settled(batch)
        self._settled_at = time.monotonic()

    def _ended(self, one: Finished) -> EndedAttempt:
        outcome = one.outcome
        if outcome is DONE:  # most of them: as `decide` says, without asking for it each time
            outcome = SUCCEEDED
        elif not isinstance(outcome, Settlement):
            target = self._registry.get(one.claim.destination)
            backoff = DEFAULT if target is None else target.backoff
            outcome = decide(one.claim, outcome, backoff=backoff, jitter=self._chance())
        return EndedAttempt(one.claim, outcome, one.started, one.ended, one.error_type)

    def _until_taken(self, pairs: list[tuple[Claimed, Settlement]]) -> list[Claimed]:
        """Settle, however often it takes: a token works once, so repeating is harmless. Returns what was not ours."""
        lost: list[Claimed] = []
        wait = 0.02
        while pairs:
            try:
                report = self._store.claims.settle(pairs)
                lost += report.lost
                stuck = {claim.id for claim in report.stuck}
                pairs = [pair for pair in pairs if pair[0].id in stuck]
                if not pairs:
                    break
            except (DatabaseUnavailable, DatabaseBusy):
                pass  # the heartbeat counts and reports it; the outcomes are safe here
            except StoreError as error:
                return lost + self._one_by_one(pairs, error)
            if self._abandoned.wait(wait * (0.5 + self._chance())):
                return lost + [claim for claim, _ in pairs]
            wait = min(wait * 2, _LONGEST_WAIT)
        return lost

    def _one_by_one(self, pairs: list[tuple[Claimed, Settlement]], error: StoreError) -> list[Claimed]:
        """The database refuses a batch: find the row it refuses, so that the others are settled."""
        if len(pairs) > 1:
            middle = len(pairs) // 2
            return self._until_taken(pairs[:middle]) + self._until_taken(pairs[middle:])
        ((claim, _),) = pairs
        Log(outbox_id=claim.id, adapter=claim.destination).error("SETTLE_REFUSED", error=str(error))
        return [claim]  # not held any more: the next comparison gives it back, and it runs again

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
        self._on_settled(())


def _by_worker(pairs: list[tuple[Claimed, Settlement]]) -> list[list[tuple[Claimed, Settlement]]]:
    """Apart by owner: a new incarnation may have begun in between."""
    if not pairs:
        return []
    first = pairs[0][0].worker
    if not [claim for claim, _ in pairs if claim.worker is not first]:
        return [pairs]
    workers = dict.fromkeys(claim.worker for claim, _ in pairs)
    return [[pair for pair in pairs if pair[0].worker == worker] for worker in workers]
