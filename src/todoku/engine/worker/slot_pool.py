"""3a. Async handlers and senders: N long-lived tasks over a queue, and one watchdog for all deadlines.

A new task or timeout per message would cost as much as the rest of the attempt.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from todoku.core.decision import Settlement
from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import DONE, Done, Outcome, Traceback
from todoku.engine.context import Context
from todoku.engine.encryption.opener import is_sealed
from todoku.engine.execute import Executor, Unstarted, as_exception, handler_package, interrupted_outcome, outcome_of
from todoku.engine.observability.log import Log
from todoku.engine.registry import Target
from todoku.engine.worker.handler_stacks import RunningHandler, coroutine_stack, describe_handler, thread_stack
from todoku.engine.worker.pace import Pace
from todoku.engine.worker.pool import BoundedQueue, ReadyQueue, Work
from todoku.engine.worker.send_batch import ParallelLanes, send

_ATTEMPTS_PER_TURN: Final = 64
"""Attempts in a row after which a slot yields to the event loop: handlers that never wait must not starve it."""

_WATCH: Final = 0.1


class Slot:
    """One long-lived task, and the attempt it runs now."""

    __slots__ = ("claim", "context", "ends", "resting", "stack", "stopped", "task", "timeout")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.claim: Claimed | None = None
        self.context: Context | None = None
        self.ends = 0.0
        self.timeout = 0.0
        self.stopped: str | None = None
        self.stack: Traceback | None = None
        self.resting: asyncio.Future[None] | None = None


class SlotPool:
    """A pool whose slots are tasks in the event loop."""

    def __init__(
        self, name: str, destinations: tuple[str, ...], executor: Executor, *, slots: int, most: int,
        on_done: Callable[[], None], ready: BoundedQueue | None = None, batch: int = 1, claims_ahead: int = 1,
    ) -> None:  # fmt: skip
        self.name = name
        self.destinations = destinations
        self.slots = slots
        self.pace = Pace(slots, most, batch, claims_ahead=claims_ahead)
        self._executor = executor
        self._on_done = on_done
        self._ready = ReadyQueue(time.monotonic) if ready is None else ready
        self._on_ended = None if ready is None else ready.release
        self._slots: list[Slot] = []
        self._running = self._resting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._watchdog: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------------------------- as a Pool

    def start(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        for _ in range(self.slots):
            slot = Slot()
            slot.task = self._loop.create_task(self._run(slot), name=f"todoku {self.name} slot")
            slot.task.add_done_callback(self._slot_ended)
            self._slots.append(slot)
        self._watchdog = self._loop.create_task(self._watch(), name="todoku watchdog")

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        """Reports a slot that ended by an error in todoku itself: otherwise the delivery it held would hang."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            Log(slot=self.name).error("SLOT_FAILED", error_type=type(error).__name__)
            self._executor.on_failure(error)

    def feed(self, works: list[Work], *, is_limited: bool = False) -> None:
        self._ready.add(works, is_limited=is_limited)  # here and not in the loop, so that it counts as waiting at once
        self._call_in_loop(self._wake, len(works))

    def waiting(self) -> int:
        return len(self._ready)

    def waiting_limited(self) -> int:
        return self._ready.waiting_limited()

    def running(self) -> int:
        return self._running

    def occupied(self) -> int:
        return self.slots - self._resting

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        return self._ready.take(which, before=before)

    def watch(self, now: float) -> None:
        """Does nothing: the watchdog task checks deadlines and cancellations in the event loop."""

    def handlers(self, now: float) -> list[RunningHandler]:
        executor, loop, found = self._executor, self._loop, list[RunningHandler]()
        for slot in self._slots:
            claim, task = slot.claim, slot.task
            if claim is None or task is None or loop is None:
                continue
            package = handler_package(executor.registry[claim.destination])
            thread = None if slot.context is None else slot.context.thread
            if thread is None:
                stack = coroutine_stack(task, loop, self._loop_thread, package, executor.tracebacks)
            else:
                stack = thread_stack(thread, package, executor.tracebacks)
            if slot.claim is claim:
                found.append(describe_handler(claim, self.name, now - (slot.ends - slot.timeout), stack))
        return found

    def interrupt(self) -> None:
        self._call_in_loop(self._stop_attempts, "drain")

    def drop(self) -> None:
        self._ready.take()
        self._call_in_loop(self._stop_attempts, "lost")

    def stop(self) -> None:
        for task in (*(slot.task for slot in self._slots), self._watchdog):
            if task is not None:
                task.cancel()

    def holder(self, task: asyncio.Task[Any] | None) -> str | None:
        """Returns the destination whose handler this task runs, to name the handler that blocks the loop."""
        for slot in self._slots:
            if slot.task is task and slot.claim is not None:
                return slot.claim.destination
        return None

    # ------------------------------------------------------------------------------------- in the loop

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _wake(self, number: int) -> None:
        """Wakes up to `number` resting slots."""
        for slot in self._slots:
            if number and slot.resting is not None and not slot.resting.done():
                slot.resting.set_result(None)
                number -= 1

    async def _run(self, slot: Slot) -> None:
        in_a_row = 0
        while True:
            work = self._ready.next()
            if work is None:
                await self._rest(slot)
                continue
            if isinstance(work, Claimed):
                # Fast path: a delivery with a payload and no headers is not encrypted.
                plain = work.headers is None and work.payload is not None
                await (self._run_attempt(slot, work) if plain else self._open_and_run(slot, work))
            else:
                await self._run_lane(slot, work)
            if self._on_ended is not None:
                self._on_ended(work)
            in_a_row += 1
            if in_a_row % _ATTEMPTS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _rest(self, slot: Slot) -> None:
        """Reports a free slot and waits until there is work."""
        slot.resting = asyncio.get_running_loop().create_future()
        self._resting += 1
        self._on_done()
        try:
            await slot.resting
        finally:
            self._resting -= 1
            slot.resting = None

    async def _run_lane(self, slot: Slot, lane: tuple[Claimed, ...]) -> None:
        """Runs the rows of a lane in order. After the first failure the rest is given back uncounted (I10)."""
        target = self._executor.registry[lane[0].destination]
        if target.sender is not None:
            await self._run_lanes(slot, lane, target)
            return
        for place, claim in enumerate(lane):
            if not await self._open_and_run(slot, claim):
                self._executor.give_back(list(lane[place + 1 :]))
                break

    async def _run_attempt(self, slot: Slot, claim: Claimed) -> bool:
        """Runs one attempt, from the last checks to its outcome. True: the next row of its lane may run."""
        executor = self._executor
        target = executor.registry[claim.destination]
        now = time.monotonic()
        if not executor.may_start(claim, now):
            return False
        if executor.may_be_decided(claim):
            decided: Outcome | Settlement | Unstarted | None = executor.decide_unsent(claim)
            if decided is None and executor.must_recheck_ledger(claim):
                decided = await asyncio.to_thread(executor.recheck_ledger, claim)
            now = time.monotonic()
            if decided is not None:
                return executor.finish_unsent(claim, decided, now)
        if target.sender is not None:
            return await self._send_with_companions(slot, claim, target, now)
        outcome: Outcome | Settlement = DONE
        error, stack, span = None, None, executor.begin(claim, target)
        self._occupy(slot, claim, target, now)
        make = target.context
        slot.context = Context(claim, slot.ends) if make is None else make(claim, slot.ends, executor)
        try:
            value = await target.call(slot.context)  # type: ignore[misc]
            if value is not None:
                outcome = outcome_of(value, target, claim)
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is an outcome
            outcome, error, stack = self._failure(slot, claim, target, raised)
        return self._finish(slot, claim, outcome, now, error, span, stack=stack)

    def _failure(
        self, slot: Slot, claim: Claimed, target: Target, raised: BaseException
    ) -> tuple[Outcome, Exception | None, Traceback | None]:
        """Returns the outcome of an attempt that raised, its exception, and where it stood if it was stopped.

        Raises again what is not the attempt's: the pool itself is being stopped, or somebody has pressed Ctrl-C.
        """
        if isinstance(raised, KeyboardInterrupt | GeneratorExit):
            raise raised
        if isinstance(raised, asyncio.CancelledError) and slot.stopped is not None:
            stack = slot.stack or self._executor.format_stack(claim, raised.__traceback__, slot.stopped)
            return interrupted_outcome(slot.stopped, target.name, slot.timeout), None, stack
        if isinstance(raised, asyncio.CancelledError) and (slot.task is None or slot.task.cancelling()):
            raise raised
        error = as_exception(raised)
        return classify(error, target.retrying), error, None

    def _open_and_run(self, slot: Slot, claim: Claimed) -> Coroutine[Any, Any, bool]:
        """Returns the coroutine that runs a claim, decrypting it first if it is sealed."""
        return self._open_sealed_and_run(slot, claim) if is_sealed(claim) else self._run_attempt(slot, claim)

    async def _open_sealed_and_run(self, slot: Slot, claim: Claimed) -> bool:
        """Decrypts a claim and runs it. Reads its key in a thread if it is not cached."""
        opening, known = self._executor.open, self._executor.opener.knows(claim)
        opened = opening(claim) if known else await asyncio.to_thread(opening, claim)
        return opened is not None and await self._run_attempt(slot, opened)

    def _occupy(self, slot: Slot, claim: Claimed, target: Target, now: float) -> None:
        slot.timeout = self._executor.timeout(target, claim)
        slot.ends = now + slot.timeout
        slot.claim = claim
        self._running += 1

    def _free(self, slot: Slot) -> str | None:
        """Clears the slot after its attempt. Returns why the attempt was stopped, or None."""
        self._running -= 1
        stopped, slot.stopped, slot.claim, slot.context, slot.stack = slot.stopped, None, None, None, None
        if stopped is not None and slot.task is not None:
            slot.task.uncancel()
        return stopped

    def _finish(
        self, slot: Slot, claim: Claimed, outcome: Outcome | Settlement, started: float, error: Exception | None,
        span: Any, *, stack: Traceback | None,
    ) -> bool:  # fmt: skip
        """Frees the slot and passes the outcome to the settler. True: the next row of its lane may run."""
        bound = None
        if slot.context is not None:  # the attempts of a run begin anew with each of its steps
            bound, claim = slot.context.bound, slot.context.claim
        stopped = self._free(slot)
        if stopped is not None and error is not None:  # an error raised while being cancelled is no failure
            outcome = interrupted_outcome(stopped, claim.destination, slot.timeout)
        self._executor.finish(claim, outcome, started, error, span, stack=stack, bound=bound)
        return isinstance(outcome, Done)

    async def _send_with_companions(self, slot: Slot, first: Claimed, target: Target, now: float) -> bool:
        """Sends one batch: the first delivery, and waiting ones for the same destination. True: the first arrived."""
        alone = target.batch == 1 or first.lane is not None
        batch = [first] if alone else [first, *self._companions(target, now)]
        return (await self._send_batch(slot, batch, target, now))[0]

    async def _send_batch(self, slot: Slot, batch: list[Claimed], target: Target, now: float) -> list[bool]:
        """Sends a batch and finishes its attempts. Returns for each whether it arrived."""
        executor, sender = self._executor, target.sender
        assert sender is not None  # noqa: S101 - only senders are sent to
        # The span of the first delivery begins last, so that it is the current one while the batch is sent.
        spans = [executor.begin(claim, target) for claim in reversed(batch)][::-1]
        messages = [executor.outgoing(claim, span) for claim, span in zip(batch, spans, strict=True)]
        self._occupy(slot, batch[0], target, now)
        try:
            outcomes = await send(sender, messages)
        except BaseException as raised:  # noqa: BLE001 - the batch was stopped, or raised what is no Exception
            outcome, error, _ = self._failure(slot, batch[0], target, raised)
            outcomes = [(outcome, error)] * len(batch)
        self._free(slot)
        for claim, span, (outcome, error) in zip(batch, spans, outcomes, strict=True):
            executor.finish(claim, outcome, now, error, span)
        return [isinstance(outcome, Done) for outcome, _ in outcomes]

    def _companions(self, target: Target, now: float) -> Iterator[Claimed]:
        """Yields the next waiting deliveries for the same destination that can be sent at once, up to a batch."""
        executor = self._executor

        def fits(claim: Claimed) -> bool:
            return claim.destination == target.name and self._is_sendable_now(claim)

        number = 1
        while number < target.batch and (found := self._ready.next_if(fits, Claimed)) is not None:
            if (claim := executor.open(found) if is_sealed(found) else found) is None:
                continue
            if (decided := executor.decide_unsent(claim)) is not None:
                executor.finish(claim, decided, now)
            elif executor.may_start(claim, now):
                number += 1
                yield claim

    def _is_sendable_now(self, claim: Claimed) -> bool:
        """Whether the claim can be sent without reading the ledger or a data key from the database."""
        executor = self._executor
        return not executor.must_recheck_ledger(claim) and (not is_sealed(claim) or executor.opener.knows(claim))

    # --------------------------------------------------------------------------------- lanes in parallel

    async def _run_lanes(self, slot: Slot, first: tuple[Claimed, ...], target: Target) -> None:
        """Sends several lanes of one destination in parallel; after a failure the rest of that lane is given back."""
        lanes = ParallelLanes(first)

        def fits(lane: tuple[Claimed, ...]) -> bool:
            return lane[0].destination == target.name

        while lanes:
            while len(lanes) < target.batch and (more := self._ready.next_if(fits, tuple)) is not None:
                lanes.add(more)
            self._executor.give_back(lanes.drop_stopped(await self._run_heads(slot, lanes.heads(), target)))

    async def _run_heads(self, slot: Slot, claims: list[Claimed], target: Target) -> list[bool]:
        """Runs one attempt of each claim: those that can be sent at once as one batch, the others one by one.

        Returns for each whether the next row of its lane may run.
        """
        executor, going = self._executor, dict.fromkeys(range(len(claims)), False)
        batch: dict[int, Claimed] = {}
        alone = [place for place, claim in enumerate(claims) if not self._is_sendable_now(claim)]
        now = time.monotonic()
        for place, found in enumerate(claims):
            if place in alone or (claim := executor.open(found) if is_sealed(found) else found) is None:
                continue
            if not executor.may_start(claim, now):
                continue
            if executor.may_be_decided(claim) and (decided := executor.decide_unsent(claim)) is not None:
                going[place] = executor.finish_unsent(claim, decided, now)
            else:
                batch[place] = claim
        if batch:
            going |= zip(batch, await self._send_batch(slot, list(batch.values()), target, now), strict=True)
        for place in alone:
            going[place] = await self._open_and_run(slot, claims[place])
        return list(going.values())

    # ----------------------------------------------------------------------------------------- stopping

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH)
            now, cancelled = time.monotonic(), self._executor.cancelled
            for slot in self._slots:
                if slot.claim is None:
                    continue
                if now >= slot.ends and (slot.context is None or now >= slot.context.deadline):
                    self._stop_slot(slot, "timeout")
                elif cancelled and (slot.claim.id, slot.claim.epoch) in cancelled:
                    if slot.context is not None:
                        slot.context.cancel()
                    if slot.context is None or not slot.context.stops_itself:
                        self._stop_slot(slot, "cancel")

    def _stop_attempts(self, why: str) -> None:
        for slot in self._slots:
            if slot.claim is not None:
                self._stop_slot(slot, why)

    def _stop_slot(self, slot: Slot, why: str) -> None:
        if slot.stopped is None and slot.claim is not None and slot.context is not None and slot.context.thread:
            frame = sys._current_frames().get(slot.context.thread)  # later, the thread is on its way out
            slot.stack = self._executor.format_stack(slot.claim, frame, why)
        slot.stopped = slot.stopped or why
        if slot.task is not None:
            slot.task.cancel()
