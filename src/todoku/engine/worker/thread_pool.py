"""3c. Plain handlers: threads over a queue. A thread cannot be stopped: past its time it is abandoned and replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from todoku.core.decision import Settlement
from todoku.core.errors import StoreError
from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import DONE, Done, Outcome, Retry
from todoku.engine.context import Context
from todoku.engine.encryption.opener import is_closed
from todoku.engine.execute import Executor, Unstarted, interrupted, outcome_of
from todoku.engine.observability.log import Log
from todoku.engine.registry import Target
from todoku.engine.worker.pace import Pace
from todoku.engine.worker.pool import Ready, Work, claims_of
from todoku.engine.worker.worker_thread import thread
from todoku.store.claims import Transacted

Ran = tuple[Outcome | Transacted | Unstarted, Exception | None]
"""What running a handler came to; Transacted: its own transaction has decided about the settle already."""

_AGAIN: Final = 0.5
"""Seconds to wait with a handler whose transaction could not be opened."""


class Runner(Protocol):
    """How one thread of a pool runs a handler: here, or in a process of its own."""

    def run(self, context: Context, target: Target, seconds: float) -> Ran:
        """Run one attempt, blocking."""

    def close(self) -> None:
        """The thread ends."""


class Here:
    """Runs handlers in the thread itself."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, context: Context, target: Target, seconds: float) -> Ran:
        if not target.transactional:
            return called(context, target)
        return transacted(self._executor, context, target, seconds)

    def close(self) -> None:
        """Nothing to give back."""


def called(context: Context, target: Target) -> Ran:
    """Call a plain handler."""
    try:
        value: Any = target.call(context)  # type: ignore[misc]
        return (DONE if value is None else outcome_of(value, target)), None
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome
        return classify(error, target.retrying), error


def transacted(executor: Executor, context: Context, target: Target, seconds: float) -> Ran:
    """Call a handler in a transaction of its own, which commits with its settle or not at all (I6)."""
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
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome
            errors.append(error)
            return classify(error, target.retrying)
        return executor.opener.closed(context.claim, outcome_of(value, target), None)

    limit = min(seconds, executor.lease.seconds / 4)
    try:
        outcome = executor.store.claims.transact(context.claim, work, limit=limit)
    except Exception as error:  # noqa: BLE001 - the commit failed: it is settled like any other failure, and fenced
        if not begun and isinstance(error, StoreError):  # no connection to be had: the attempt never started (I4)
            return Unstarted(), error
        return classify(error), error
    return outcome, errors[0] if errors else None


class _Thread:
    """One thread, and the attempt it makes now."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.context: Context | None = None
        self.started = 0.0
        self.seconds = 0.0
        self.abandoned = False
        self.resting = False


class ThreadPool:
    """Slots that are threads."""

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
        self._ready = Ready(time.monotonic)
        self._fed = threading.Condition()
        self._ending = threading.Lock()
        self._threads: list[_Thread] = []
        self._stopped = False

    # --------------------------------------------------------------------------------------- as a Pool

    def start(self) -> None:
        for _ in range(self.slots):
            self._add()

    def feed(self, works: list[Work], *, presses: bool = False) -> None:
        self._ready.add(works, presses=presses)
        with self._fed:
            self._fed.notify(len(works))

    def waiting(self) -> int:
        return len(self._ready)

    def pressing(self) -> int:
        return self._ready.pressing()

    def running(self) -> int:
        return sum(one.context is not None and not one.abandoned for one in self._threads)

    def occupied(self) -> int:
        return sum(not one.resting for one in self._threads)

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        return self._ready.take(which, before=before)

    def watch(self, now: float) -> None:
        for one in list(self._threads):
            if (context := one.context) is None or one.abandoned:
                continue
            if now >= one.started + one.seconds:
                self._abandon(one, "timeout")
            elif (context.claim.id, context.claim.epoch) in self._executor.cancelled:
                context.cancel()

    def interrupt(self) -> None:
        for one in list(self._threads):
            self._abandon(one, "drain")

    def drop(self) -> None:
        self._ready.take()

    def stop(self) -> None:
        self._stopped = True
        with self._fed:
            self._fed.notify_all()
        for one in self._threads:
            if one.thread is not None and not one.abandoned and one.context is None:
                one.thread.join(timeout=5)

    # ------------------------------------------------------------------------------------- the threads

    def _add(self) -> None:
        one = _Thread()
        one.thread = thread(self.name, lambda: self._run(one), self._executor.on_failure)
        self._threads.append(one)
        one.thread.start()

    def _run(self, one: _Thread) -> None:
        runner = self._runner()
        try:
            while not one.abandoned and not self._stopped:
                work = self._ready.next()
                if work is None:
                    self._rest(one)
                    continue
                for place, claim in enumerate(claims_of(work)):
                    if not self._unseal(one, claim, runner):
                        self._executor.give_back(list(claims_of(work)[place + 1 :]))
                        break
        finally:
            runner.close()

    def _rest(self, one: _Thread) -> None:
        """Say once that there is room, and wait until there is work."""
        one.resting = True
        self._on_done()
        with self._fed:
            while not (len(self._ready) or self._stopped or one.abandoned):
                self._fed.wait(timeout=1.0)
        one.resting = False

    def _unseal(self, one: _Thread, claim: Claimed, runner: Runner) -> bool:
        """As _one, of what can be opened if it is sealed."""
        opened = self._executor.opened(claim) if is_closed(claim) else claim
        return opened is not None and self._one(one, opened, runner)

    def _one(self, one: _Thread, claim: Claimed, runner: Runner) -> bool:
        """One attempt, from the last checks to its outcome. Whether what follows it in its lane may run."""
        executor = self._executor
        target = executor.registry[claim.destination]
        if not executor.may_start(claim, time.monotonic()):
            return False
        decided: Outcome | Settlement | Unstarted | None = executor.decided(claim)
        if decided is None and executor.must_look_again(claim):
            decided = executor.look_again(claim)
        now = time.monotonic()
        if decided is not None:
            return executor.finish_unsent(claim, decided, now)
        span = executor.begin(claim, target)
        one.started, one.seconds = now, executor.timeout(target, claim)
        one.context = context = Context(claim, now + one.seconds)
        outcome, error = runner.run(context, target, one.seconds)
        with self._ending:
            if one.abandoned:
                Log(adapter=target.name, message_id=claim.message_id).warning(
                    "LATE_RESULT", outcome=type(outcome).__name__
                )
                return False
            one.context = None
        if isinstance(outcome, Unstarted):
            executor.unstart(claim, span, delay=_AGAIN)
            return False
        if context.cancelled() and error is not None:
            outcome = interrupted("cancel")
        if outcome is Transacted.SETTLED:
            executor.finish(claim, DONE, now, None, span, settled=True)
            return True
        if outcome is Transacted.LOST:  # rolled back, so no success: the ledger must not hear of one (I6)
            outcome = Retry(reason="LEASE_LOST", detail="the delivery was not ours any more; rolled back")
        executor.finish(claim, outcome, now, error, span)
        return isinstance(outcome, Done)

    def _abandon(self, one: _Thread, why: str) -> None:
        """Settle for a thread that does not end, and put another in its place. What it still does, it does twice."""
        with self._ending:
            if one.context is None or one.abandoned:
                return
            one.abandoned = True
            context = one.context
        context.cancel()
        self._executor.finish(context.claim, interrupted(why, one.seconds), one.started)
        Log(adapter=context.claim.destination, message_id=context.claim.message_id).warning(
            "HANDLER_ABANDONED", why=why, seconds=round(time.monotonic() - one.started, 3)
        )
        self._threads.remove(one)
        if why == "timeout":
            self._add()
