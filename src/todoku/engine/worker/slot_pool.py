"""3a. Async handlers and senders: N long-lived tasks over a queue, and one watchdog for all deadlines.

A task or a timeout for each message would cost as much as everything else together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from todoku.core.decision import Settlement
from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import DONE, Done, Outcome
from todoku.engine.context import Context
from todoku.engine.encryption.opener import is_closed
from todoku.engine.execute import Executor, Unstarted, interrupted, outcome_of
from todoku.engine.observability.log import Log
from todoku.engine.registry import Target
from todoku.engine.worker.bounded_queue import Bounded
from todoku.engine.worker.pace import Pace
from todoku.engine.worker.pool import Ready, Work
from todoku.engine.worker.send_batch import Abreast, send

_BREATH: Final = 64
"""So many attempts in a row, then the loop gets a turn: handlers that never wait must not starve it."""

_WATCH: Final = 0.1


class Slot:
    """One long-lived task, and the attempt it makes now."""

    __slots__ = ("claim", "context", "ends", "resting", "stopped", "taking", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.claim: Claimed | None = None
        self.context: Context | None = None
        self.ends = 0.0
        self.taking = 0.0
        self.stopped: str | None = None
        self.resting: asyncio.Future[None] | None = None


class SlotPool:
    """Slots in an event loop."""

    def __init__(
        self, name: str, destinations: tuple[str, ...], executor: Executor, *, slots: int, most: int,
        on_done: Callable[[], None], ready: Bounded | None = None, batch: int = 1,
    ) -> None:  # fmt: skip
        self.name = name
        self.destinations = destinations
        self.slots = slots
        self.pace = Pace(slots, most, batch)
        self._executor = executor
        self._on_done = on_done
        self._ready = Ready(time.monotonic) if ready is None else ready
        self._over = None if ready is None else ready.ended
        self._slots: list[Slot] = []
        self._running = self._resting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------------------------- as a Pool

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for _ in range(self.slots):
            slot = Slot()
            slot.task = self._loop.create_task(self._run(slot), name=f"todoku {self.name} slot")
            slot.task.add_done_callback(self._slot_ended)
            self._slots.append(slot)
        self._watchdog = self._loop.create_task(self._watch(), name="todoku watchdog")

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        """A slot ends when it is cancelled. By an error of ours it must not end silently: what it held would hang."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            Log(slot=self.name).error("SLOT_FAILED", error_type=type(error).__name__)
            self._executor.on_failure(error)

    def feed(self, works: list[Work], *, presses: bool = False) -> None:
        self._ready.add(works, presses=presses)  # here, not in the loop: what is on its way there waits already
        self._call(self._wake, len(works))

    def waiting(self) -> int:
        return len(self._ready)

    def pressing(self) -> int:
        return self._ready.pressing()

    def running(self) -> int:
        return self._running

    def occupied(self) -> int:
        return self.slots - self._resting

    def take(self, which: Callable[[Claimed], bool] | None = None, *, before: float | None = None) -> list[Claimed]:
        return self._ready.take(which, before=before)

    def watch(self, now: float) -> None:
        """Deadlines and cancellations: the watchdog does it, in the loop."""

    def interrupt(self) -> None:
        self._call(self._stop_attempts, "drain")

    def drop(self) -> None:
        self._ready.take()
        self._call(self._stop_attempts, "lost")

    def stop(self) -> None:
        for task in (*(slot.task for slot in self._slots), self._watchdog):
            if task is not None:
                task.cancel()

    def holder(self, task: asyncio.Task[Any] | None) -> str | None:
        """The destination whose handler this task runs, to name who blocks the loop."""
        for slot in self._slots:
            if slot.task is task and slot.claim is not None:
                return slot.claim.destination
        return None

    # ------------------------------------------------------------------------------------- in the loop

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _wake(self, number: int) -> None:
        """Wake so many slots, if so many rest."""
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
                # What has a payload and no headers is not sealed: most of it, and it need not be asked.
                plain = work.headers is None and work.payload is not None
                await (self._one(slot, work) if plain else self._made(slot, work))
            else:
                await self._in_turn(slot, work)
            if self._over is not None:
                self._over(work)
            in_a_row += 1
            if in_a_row % _BREATH == 0:
                await asyncio.sleep(0)

    async def _rest(self, slot: Slot) -> None:
        """Wait until there is work."""
        slot.resting = asyncio.get_running_loop().create_future()
        self._resting += 1
        self._on_done()
        try:
            await slot.resting
        finally:
            self._resting -= 1
            slot.resting = None

    async def _in_turn(self, slot: Slot, lane: tuple[Claimed, ...]) -> None:
        """The rows of a lane. After the first that fails the rest waits its turn, with its attempt back (I10)."""
        target = self._executor.registry[lane[0].destination]
        if target.sender is not None:
            await self._abreast(slot, lane, target)
            return
        for place, claim in enumerate(lane):
            if not await self._made(slot, claim):
                self._executor.give_back(list(lane[place + 1 :]))
                break

    async def _one(self, slot: Slot, claim: Claimed) -> bool:
        """One attempt, from the last checks to its outcome. Whether what follows it in its lane may run."""
        executor = self._executor
        target = executor.registry[claim.destination]
        now = time.monotonic()
        if not executor.may_start(claim, now):
            return False
        if executor.needs_a_look(claim):
            decided: Outcome | Settlement | Unstarted | None = executor.decided(claim)
            if decided is None and executor.must_look_again(claim):
                decided = await asyncio.to_thread(executor.look_again, claim)
            now = time.monotonic()
            if decided is not None:
                return executor.finish_unsent(claim, decided, now)
        if target.sender is not None:
            return await self._send(slot, claim, target, now)
        outcome: Outcome = DONE
        error, span = None, executor.begin(claim, target)
        self._occupy(slot, claim, target, now)
        try:
            value = await target.call(slot.context)  # type: ignore[misc,arg-type]
            if value is not None:
                outcome = outcome_of(value, target)
        except asyncio.CancelledError:
            if slot.stopped is None:
                raise  # not ours: the pool itself is being stopped
            outcome = interrupted(slot.stopped, slot.taking)
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is an outcome
            error, outcome = raised, classify(raised, target.retrying)
        return self._ended(slot, claim, outcome, now, error, span)

    def _made(self, slot: Slot, claim: Claimed) -> Coroutine[Any, Any, bool]:
        """The attempt to be made of a claim: of a sealed one, what opens it first."""
        return self._unseal(slot, claim) if is_closed(claim) else self._one(slot, claim)

    async def _unseal(self, slot: Slot, claim: Claimed) -> bool:
        """As _one, of what can be opened; what needs the database for that does not hold up the loop."""
        opening, known = self._executor.opened, self._executor.opener.knows(claim)
        opened = opening(claim) if known else await asyncio.to_thread(opening, claim)
        return opened is not None and await self._one(slot, opened)

    def _occupy(self, slot: Slot, claim: Claimed, target: Target, now: float) -> None:
        slot.taking = self._executor.timeout(target, claim)
        slot.ends = now + slot.taking
        slot.claim = claim
        slot.context = Context(claim, slot.ends)
        self._running += 1

    def _free(self, slot: Slot) -> str | None:
        """The attempt is over. Why it was stopped, if it was."""
        self._running -= 1
        stopped, slot.stopped, slot.claim, slot.context = slot.stopped, None, None, None
        if stopped is not None and slot.task is not None:
            slot.task.uncancel()
        return stopped

    def _ended(
        self, slot: Slot, claim: Claimed, outcome: Outcome, started: float, error: Exception | None, span: Any
    ) -> bool:
        """Free the slot and hand the outcome on."""
        stopped = self._free(slot)
        if stopped is not None and error is not None:  # what a handler makes of being cancelled is not its own failure
            outcome = interrupted(stopped, slot.taking)
        self._executor.finish(claim, outcome, started, error, span)
        return isinstance(outcome, Done)

    async def _send(self, slot: Slot, first: Claimed, target: Target, now: float) -> bool:
        """One batch of a sender: the first delivery, and what waits behind it for the same destination."""
        batch = [first, *(self._companions(target, now) if first.lane is None else ())]
        return (await self._sent(slot, batch, target, now))[0]

    async def _sent(self, slot: Slot, batch: list[Claimed], target: Target, now: float) -> list[bool]:
        """Send a batch to its outcomes. Of each, whether it arrived."""
        executor, sender = self._executor, target.sender
        assert sender is not None  # noqa: S101 - only senders are sent to
        # The first one's is begun last, so that it is the current one while the batch is on its way.
        spans = [executor.begin(claim, target) for claim in reversed(batch)][::-1]
        messages = [executor.outgoing(claim, span) for claim, span in zip(batch, spans, strict=True)]
        self._occupy(slot, batch[0], target, now)
        try:
            outcomes = await send(sender, messages)
        except asyncio.CancelledError:
            if slot.stopped is None:
                raise
            outcomes = [(interrupted(slot.stopped, slot.taking), None)] * len(batch)
        self._free(slot)
        for claim, span, (outcome, error) in zip(batch, spans, outcomes, strict=True):
            executor.finish(claim, outcome, now, error, span)
        return [isinstance(outcome, Done) for outcome, _ in outcomes]

    def _companions(self, target: Target, now: float) -> Iterator[Claimed]:
        """What waits next for the same destination and can be sent at once, up to a batch."""
        executor = self._executor

        def fits(claim: Claimed) -> bool:
            return claim.destination == target.name and self._at_once(claim)

        number = 1
        while number < target.batch and (found := self._ready.next_if(fits, Claimed)) is not None:
            if (claim := executor.opened(found) if is_closed(found) else found) is None:
                continue
            if (decided := executor.decided(claim)) is not None:
                executor.finish(claim, decided, now)
            elif executor.may_start(claim, now):
                number += 1
                yield claim

    def _at_once(self, claim: Claimed) -> bool:
        """Whether it needs no second look at the ledger, and no key that is not known here."""
        executor = self._executor
        return not executor.must_look_again(claim) and (not is_closed(claim) or executor.opener.knows(claim))

    # -------------------------------------------------------------------------------- lanes side by side

    async def _abreast(self, slot: Slot, first: tuple[Claimed, ...], target: Target) -> None:
        """Lanes of one destination, as many as a batch has messages; after a failure a lane's rest is given back."""
        lanes = Abreast(first)

        def fits(lane: tuple[Claimed, ...]) -> bool:
            return lane[0].destination == target.name

        while lanes:
            while len(lanes) < target.batch and (more := self._ready.next_if(fits, tuple)) is not None:
                lanes.add(more)
            self._executor.give_back(lanes.ended(await self._heads(slot, lanes.heads(), target)))

    async def _heads(self, slot: Slot, claims: list[Claimed], target: Target) -> list[bool]:
        """One attempt of each: what can be sent at once as one batch, the others apart. Whether each lane may go on."""
        executor, going = self._executor, dict.fromkeys(range(len(claims)), False)
        batch: dict[int, Claimed] = {}
        apart = [place for place, claim in enumerate(claims) if not self._at_once(claim)]
        now = time.monotonic()
        for place, found in enumerate(claims):
            if place in apart or (claim := executor.opened(found) if is_closed(found) else found) is None:
                continue
            if not executor.may_start(claim, now):
                continue
            if executor.needs_a_look(claim) and (decided := executor.decided(claim)) is not None:
                going[place] = executor.finish_unsent(claim, decided, now)
            else:
                batch[place] = claim
        if batch:
            going |= zip(batch, await self._sent(slot, list(batch.values()), target, now), strict=True)
        for place in apart:
            going[place] = await self._made(slot, claims[place])
        return list(going.values())

    # ----------------------------------------------------------------------------------------- stopping

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH)
            now, cancelled = time.monotonic(), self._executor.cancelled
            for slot in self._slots:
                if slot.claim is None:
                    continue
                if now >= slot.ends:
                    self._stop_slot(slot, "timeout")
                elif cancelled and (slot.claim.id, slot.claim.epoch) in cancelled:
                    if slot.context is not None:
                        slot.context.cancel()
                    self._stop_slot(slot, "cancel")

    def _stop_attempts(self, why: str) -> None:
        for slot in self._slots:
            if slot.claim is not None:
                self._stop_slot(slot, why)

    def _stop_slot(self, slot: Slot, why: str) -> None:
        slot.stopped = slot.stopped or why
        if slot.task is not None:
            slot.task.cancel()
