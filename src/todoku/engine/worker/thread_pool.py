"""3c. Plain (not async) handlers: threads over a queue.

A thread cannot be stopped: after the timeout of its attempt it is abandoned and replaced.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from todoku.core.decision import Settlement
from todoku.core.errors import StoreError
from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import DONE, Done, Outcome, Retry, Traceback
from todoku.engine.context import Context
from todoku.engine.encryption.opener import is_sealed
from todoku.engine.execute import Executor, Unstarted, as_exception, handler_package, interrupted_outcome, outcome_of
from todoku.engine.observability.log import Log
from todoku.engine.registry import Target
from todoku.engine.worker.handler_stacks import RunningHandler, describe_handler, thread_stack
from todoku.engine.worker.pace import Pace
from todoku.engine.worker.pool import ReadyQueue, Work, claims_of
from todoku.engine.worker.worker_thread import create_thread
from todoku.store.claims import Transacted

RunResult = tuple[Outcome | Transacted | Unstarted, Exception | None, Traceback | None]
"""The outcome of a handler, its exception, and where it stood if it was stopped.

Transacted: the handler's own transaction included the settle.
"""

Errand = Callable[[Any], None]
"""Something else that a thread of a pool does for a caller, with its runner: it catches its own errors."""

_RETRY_DELAY: Final = 0.5
"""Seconds after which a delivery whose transaction could not be opened is due again."""


class Runner(Protocol):
    """How one thread of a pool runs handlers: in the thread itself, or in a child process."""

    margin: float
    """Seconds beyond its timeout after which the thread of an attempt is abandoned."""

    def run(self, context: Context, target: Target, seconds: float) -> RunResult:
        """Runs one attempt and waits for its end."""

    def stack(self, target: Target, ident: int | None) -> str | None:
        """Returns where the handler stands that it runs now in the thread `ident`. Called from another thread."""

    def close(self) -> None:
        """Releases what the runner holds. Called when its thread ends."""


class ThreadRunner:
    """Runs handlers in the thread itself."""

    margin = 0.0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, context: Context, target: Target, seconds: float) -> RunResult:
        if not target.transactional:
            return call_handler(context, target)
        return call_in_transaction(self._executor, context, target, seconds)

    def stack(self, target: Target, ident: int | None) -> str | None:
        return thread_stack(ident, handler_package(target), self._executor.tracebacks)

    def close(self) -> None:
        """Does nothing."""


def call_handler(context: Context, target: Target) -> RunResult:
    """Calls a plain handler."""
    try:
        value: Any = target.call(context)  # type: ignore[misc]
        return (DONE if value is None else _outcome(value, context, target)), None, None
    except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is an outcome
        error = as_exception(raised)
        return classify(error, target.retrying), error, None


def _outcome(value: Any, context: Context, target: Target) -> Outcome:
    outcome = outcome_of(value, target, context.claim)
    if isinstance(outcome, Settlement):
        raise TypeError(f"{target.name} returned a Settlement, which only the engine does")
    return outcome


def call_in_transaction(executor: Executor, context: Context, target: Target, seconds: float) -> RunResult:
    """Calls a handler in a transaction that commits together with the settle, or not at all (I6)."""
    errors: list[Exception] = []
    begun = False

    def work(connection: Any) -> Outcome:
        nonlocal begun
        if not executor.owns(context.claim, time.monotonic()):  # waiting for the transaction took too long (I12)
            return Retry(reason="LEASE_LOST", detail="the lease had ended before the transaction began")
        begun = True
        context.join(connection)
        try:
            value: Any = target.call(context)  # type: ignore[misc]
            context.flush()
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is an outcome
            errors.append(as_exception(raised))
            return classify(errors[0], target.retrying)
        return executor.opener.seal_outcome(context.claim, _outcome(value, context, target), None)

    limit = min(seconds, executor.lease.seconds / 4)
    try:
        outcome = executor.store.claims.transact(context.claim, work, limit=limit)
    except Exception as error:  # noqa: BLE001 - the commit failed: settled like any other failure, and fenced
        if not begun and isinstance(error, StoreError):  # no connection: the attempt never started (I4)
            return Unstarted(), error, None
        return classify(error), error, None
    return outcome, errors[0] if errors else None, None


class _ThreadSlot:
    """One thread, and the attempt it runs now."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.runner: Runner | None = None
        self.context: Context | None = None
        self.started = 0.0
        self.seconds = 0.0
        self.margin = 0.0
        self.abandoned = False
        self.resting = False


class ThreadPool:
    """A pool whose slots are threads."""

    def __init__(
        self, name: str, destinations: tuple[str, ...], executor: Executor, *, slots: int, most: int,
        on_done: Callable[[], None], runner: Callable[[], Runner],
    ) -> None:  # fmt: skip
        self.name = name
        self.destinations = destinations
        self.slots = slots
        self.pace = Pace(slots, most)
        self._executor = executor
        self._on_done = on_done
        self._runner = runner
        self._ready = ReadyQueue(time.monotonic)
        self._errands: deque[Errand] = deque()
        self._fed = threading.Condition()
        self._end_lock = threading.Lock()
        self._threads: list[_ThreadSlot] = []
        self._stopped = False

    # --------------------------------------------------------------------------------------- as a Pool

    def start(self) -> None:
        for _ in range(self.slots):
            self._start_thread()

    def feed(self, works: list[Work], *, is_limited: bool = False) -> None:
        self._ready.add(works, is_limited=is_limited)
        with self._fed:
            self._fed.notify(len(works))

    def lend(self, errand: Errand) -> None:
        """Does an errand in the next free slot, before the deliveries that wait: an attempt waits for it already."""
        self._errands.append(errand)
        with self._fed:
            self._fed.notify()

    def waiting(self) -> int:
        return len(self._ready)

    def waiting_limited(self) -> int:
        return self._ready.waiting_limited()

    def running(self) -> int:
        return sum(slot.context is not None and not slot.abandoned for slot in self._threads)

    def occupied(self) -> int:
        return sum(not slot.resting for slot in self._threads)

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        return self._ready.take(which, before=before)

    def watch(self, now: float) -> None:
        for slot in list(self._threads):
            if (context := slot.context) is None or slot.abandoned:
                continue
            if now >= slot.started + slot.seconds + slot.margin:
                self._abandon(slot, "timeout")
            elif (context.claim.id, context.claim.epoch) in self._executor.cancelled:
                context.cancel()

    def handlers(self, now: float) -> list[RunningHandler]:
        found: list[RunningHandler] = []
        for slot in list(self._threads):
            context, runner = slot.context, slot.runner
            if context is None or runner is None or slot.thread is None or slot.abandoned:
                continue
            claim, seconds = context.claim, now - slot.started
            stack = runner.stack(self._executor.registry[claim.destination], slot.thread.ident)
            if slot.context is context:  # otherwise the attempt has ended, and the stack may be of another one
                found.append(describe_handler(claim, self.name, seconds, stack))
        return found

    def interrupt(self) -> None:
        for slot in list(self._threads):
            self._abandon(slot, "drain")

    def drop(self) -> None:
        self._ready.take()

    def stop(self) -> None:
        self._stopped = True
        with self._fed:
            self._fed.notify_all()
        for slot in self._threads:
            if slot.thread is not None and not slot.abandoned and slot.context is None:
                slot.thread.join(timeout=5)

    # ------------------------------------------------------------------------------------- the threads

    def _start_thread(self) -> None:
        slot = _ThreadSlot()
        slot.thread = create_thread(self.name, lambda: self._run(slot), self._executor.on_failure)
        self._threads.append(slot)
        slot.thread.start()

    def _run(self, slot: _ThreadSlot) -> None:
        runner = slot.runner = self._runner()
        try:
            while not slot.abandoned and not self._stopped:
                if self._did_errand(runner):
                    continue
                work = self._ready.next()
                if work is None:
                    self._rest(slot)
                    continue
                for place, claim in enumerate(claims_of(work)):
                    if not self._open_and_run(slot, claim, runner):
                        self._executor.give_back(list(claims_of(work)[place + 1 :]))
                        break
        finally:
            runner.close()

    def _rest(self, slot: _ThreadSlot) -> None:
        """Reports a free slot once, and waits until there is work."""
        slot.resting = True
        self._on_done()
        with self._fed:
            while not (len(self._ready) or self._errands or self._stopped or slot.abandoned):
                self._fed.wait(timeout=1.0)
        slot.resting = False

    def _did_errand(self, runner: Runner) -> bool:
        try:
            errand = self._errands.popleft()
        except IndexError:
            return False
        errand(runner)
        return True

    def _open_and_run(self, slot: _ThreadSlot, claim: Claimed, runner: Runner) -> bool:
        """Runs a claim, decrypting it first if it is sealed. True: the next row of its lane may run."""
        opened = self._executor.open(claim) if is_sealed(claim) else claim
        return opened is not None and self._run_attempt(slot, opened, runner)

    def _run_attempt(self, slot: _ThreadSlot, claim: Claimed, runner: Runner) -> bool:
        """Runs one attempt, from the last checks to its outcome. True: the next row of its lane may run."""
        executor = self._executor
        target = executor.registry[claim.destination]
        if not executor.may_start(claim, time.monotonic()):
            return False
        decided: Outcome | Settlement | Unstarted | None = executor.decide_unsent(claim)
        if decided is None and executor.must_recheck_ledger(claim):
            decided = executor.recheck_ledger(claim)
        now = time.monotonic()
        if decided is not None:
            return executor.finish_unsent(claim, decided, now)
        span = executor.begin(claim, target)
        slot.started, slot.seconds = now, executor.timeout(target, claim)
        slot.context = context = Context(claim, now + slot.seconds)
        slot.margin = runner.margin
        outcome, error, stack = runner.run(context, target, slot.seconds)
        with self._end_lock:
            if slot.abandoned:
                Log(adapter=target.name, message_id=claim.message_id).warning(
                    "LATE_RESULT", outcome=type(outcome).__name__
                )
                return False
            slot.context = None
        if isinstance(outcome, Unstarted):
            executor.give_back_unstarted(claim, span, delay=_RETRY_DELAY)
            return False
        if context.cancelled() and error is not None:
            outcome = interrupted_outcome("cancel")
        if outcome is Transacted.SETTLED:
            executor.finish(claim, DONE, now, None, span, settled=True, bound=context.bound)
            return True
        if outcome is Transacted.LOST:  # rolled back: the ledger must not record a success (I6)
            outcome = Retry(reason="LEASE_LOST", detail="this worker had lost the delivery; rolled back")
        executor.finish(claim, outcome, now, error, span, stack=stack, bound=context.bound)
        return isinstance(outcome, Done)

    def _abandon(self, slot: _ThreadSlot, why: str) -> None:
        """Settles the attempt of a thread that does not end; after a timeout, starts another thread.

        Effects of the abandoned thread may therefore happen twice.
        """
        with self._end_lock:
            if slot.context is None or slot.abandoned:
                return
            slot.abandoned = True
            context = slot.context
        context.cancel()
        claim = context.claim
        frame = None if slot.thread is None else sys._current_frames().get(slot.thread.ident or 0)
        stack = self._executor.format_stack(claim, frame, why)
        outcome = interrupted_outcome(why, claim.destination, slot.seconds)
        self._executor.finish(claim, outcome, slot.started, stack=stack, bound=context.bound)
        Log(adapter=claim.destination, message_id=claim.message_id).warning(
            "HANDLER_ABANDONED", why=why, seconds=round(time.monotonic() - slot.started, 3)
        )
        self._threads.remove(slot)
        if why == "timeout":
            self._start_thread()
