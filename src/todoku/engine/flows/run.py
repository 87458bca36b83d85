"""One attempt of a run: its steps so far, what it reads and writes, and how it ends."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from todoku.core.decision import Settlement, park
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, InvalidMessage
from todoku.core.flow import (
    CHANGED,
    MOST_STEPS,
    StepKind,
    StepRow,
    digest_arguments,
    find_changed,
    is_own_row,
    step_key,
)
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Retry
from todoku.engine.flows.parking import Parking
from todoku.engine.flows.runtime import FlowRuntime
from todoku.engine.flows.step_telemetry import StepTelemetry
from todoku.engine.jobs.handler import is_async
from todoku.engine.observability.metrics import Metrics
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.step_pools import StepPools
from todoku.store.runs import RunLost

T = TypeVar("T")

AttemptEnd = Settlement | Done | Abort | Retry
"""How an attempt of a run ends that is stopped."""


class RunStopped(BaseException):
    """The attempt is over: the run parks, was lost, or cannot go on. Not an Exception: code must not catch it."""


class Asked(msgspec.Struct, frozen=True):
    """A step that the function asks for: its key, and its row if it was begun before."""

    key: str
    name: str
    row: StepRow | None
    number: int


class Owner(Protocol):
    """What a run asks the worker that runs it: the worker's executor."""

    lease: Lease
    is_draining: Callable[[], bool]
    step_pools: StepPools

    def owns(self, claim: Claimed, now: float) -> bool:
        """Whether the lease of this claim is certainly still valid (I12)."""


class Run:
    """The steps of one run during one attempt. It belongs to one event loop.

    What it reads and writes, and what it waits for, are methods: a replay of a recorded history has its own.
    """

    def __init__(self, claim: Claimed, executor: Owner, runtime: FlowRuntime, metrics: Metrics) -> None:
        self.claim = claim
        self.runtime = runtime
        self.executor = executor
        self.watch = StepTelemetry(claim, metrics)
        self.rows: dict[str, StepRow] = {}
        self.used: set[str] = set()
        self._occurrences: Counter[tuple[str, str]] = Counter()
        self._under_way: set[tuple[str, str]] = set()
        self._newest = 0
        self.stopped: asyncio.Future[AttemptEnd] = asyncio.get_running_loop().create_future()
        self._parking = Parking(self._park, self.stopped.done)
        self._read_at = time.monotonic()
        self.cancelling = False
        self._over = False
        self._at_cancel: set[Callable[[], None]] = set()
        self.on_progress: Callable[[], None] = lambda: None

    async def load(self) -> None:
        """Reads the steps of earlier attempts. The first attempt of all has none."""
        if self.claim.epoch > 1:
            self.rows = {row.key: row for row in await self.stored_steps() if not is_own_row(row)}
            self._newest = max((row.number for row in self.rows.values()), default=0)
        self._read_at = time.monotonic()
        self.watch.begun(self.rows.values())

    async def stored_steps(self) -> Sequence[StepRow]:
        """Reads the steps of the run, in the order in which they were begun."""
        return await self.call_store(lambda: self.runtime.store.runs.steps(self.claim.message_seq))

    # ------------------------------------------------------------------------------------------- asking

    def ask(self, name: str, arguments: str, key: str | None = None, *, alike: bool = False) -> Asked:
        """Returns the step for this call: by the function, its arguments, and how many equal ones came before (R1).

        `alike`: it does not matter which of two equal calls has which of the two steps.
        """
        self.refuse_stopped()
        self._parking.note_step()
        digest = digest_arguments(arguments, self.secret()) if key is None else f"={key}"
        place = (name, digest)
        occurrence = self._occurrences[place]
        if key is not None and occurrence:
            raise InvalidMessage(f"two steps of {name} have the key {key!r}", hint="give each its own key=")
        if key is None and not alike and place in self._under_way:
            raise InvalidMessage(
                f"{name} is called twice at once with the same arguments",
                hint="tell the two apart: ctx.step(…, key=…)",  # R9: which result belongs to which call?
            )
        self._occurrences[place] += 1
        asked = step_key(name, digest, occurrence)
        self.used.add(asked)
        row = self.rows.get(asked)
        if row is not None and row.state == "fatal" and row.replay < self.claim.replay_count:
            row = msgspec.structs.replace(row, state="open", attempts=0, wait=None)  # R12: a replay tries it again
        if row is None:
            self._newest += 1
        return Asked(asked, name, row, self._newest if row is None else row.number)

    def secret(self) -> bytes:
        """Returns the key of the digests in the keys of its steps; empty unless it is encrypted (R13)."""
        return self.runtime.secret_of(self.claim)

    async def refuse_changed(self, asked: Asked, arguments: str) -> None:
        """Stops the run if it would repeat an effect with other arguments (R1).

        A stored result that is left over may be asked for by a branch that has not come to it yet, so this waits until
        nothing else of the run goes on.
        """
        if self.runtime.on_change == "run" or not find_changed(asked.name, self.rows.values(), self.used):
            return
        async with self._parking.alone():
            if changed := find_changed(asked.name, self.rows.values(), self.used):
                await self.stop_changed(asked, arguments, changed)
        self.refuse_stopped()

    async def stop_changed(self, asked: Asked, arguments: str, changed: Sequence[StepRow]) -> None:
        """Ends the attempt, and keeps what a person may accept."""
        detail = (
            f"{asked.name} is stored for {self._shown(changed[0].arguments)} and was now called with {arguments}: "
            f"it would run again. `todoku flow rewind {self.claim.message_id} --accept` runs it"
        )
        await self._persist(lambda: self.runtime.writer.put(self.claim, self._changed(changed)))
        self.stop(Abort("STEP_CHANGED", detail))

    def _changed(self, changed: Sequence[StepRow]) -> StepRow:
        """The row that keeps what a person may accept. The error does not: it may be cut, or not be stored at all."""
        keys = msgspec.json.encode([row.key for row in changed]).decode()
        return StepRow(
            key=CHANGED, number=changed[0].number, name="changed", kind="step", state="failed", result=keys,
            replay=self.claim.replay_count,
        )  # fmt: skip

    def _shown(self, arguments: str | None) -> str:
        return self.runtime.open_text(self.claim, arguments) if arguments is not None else "()"

    def read(self, _name: str, text: str | None, decode: Callable[[str], Any]) -> Any:
        """Returns a stored result of the step or child of this name as a value."""
        return decode("null" if text is None else self.runtime.open_text(self.claim, text))

    def left(self, row: StepRow) -> float:
        """Returns the seconds until the time of a step is over; infinity if it has none."""
        return math.inf if row.wait is None else row.wait - (time.monotonic() - self._read_at)

    # ------------------------------------------------------------------------------------------ calling

    async def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], seconds: float | None = None
    ) -> Any:
        """Calls a function of the application: one that is not async in a thread. TimeoutError: it takes longer."""
        if not is_async(function):
            call = partial(function, *args, **kwargs)
            return await self.executor.step_pools.steps.run(call, seconds, check=self.refuse_stopped)
        async with asyncio.timeout(seconds):
            return await function(*args, **kwargs)

    async def call_store(self, call: Callable[[], T]) -> T:
        """Makes a blocking call of the store, in a thread that no function of the application can occupy."""
        return await self.executor.step_pools.store.run(call)

    # ------------------------------------------------------------------------------------------ writing

    async def write(self, row: StepRow) -> StepRow:
        """Writes a step, durably, before the run goes on. A run that was lost is stopped."""
        await self._persist(lambda: self.runtime.writer.put(self.claim, row))
        return self.stored(row)

    async def write_by(self, write: Callable[[], T]) -> T:
        """Makes a blocking write of the store that is fenced as a step is, in a thread."""
        return await self._persist(lambda: self.call_store(write))

    async def transact(self, write: Callable[[], StepRow], key: str) -> StepRow:
        """Makes a write that is not repeated: what the step did in its transaction is committed, or rolled back."""
        try:
            return self.stored(await self.executor.step_pools.steps.run(write, check=self.refuse_stopped))
        except RunLost:
            self.lose()
            raise RunStopped from None
        except DatabaseUnavailable:  # the commit may have happened, only its reply was lost
            for row in await self.stored_steps():
                if row.key == key and row.is_stored:
                    return self.stored(row)
            raise

    @property
    def lease_seconds(self) -> float:
        """The lease of the worker: a transaction may take a quarter of it."""
        return self.executor.lease.seconds

    async def _persist(self, write: Callable[[], Awaitable[T]]) -> T:
        pause = 0.02
        while True:
            try:
                return await write()
            except RunLost:
                self.lose()
            except (DatabaseUnavailable, DatabaseBusy):
                # The effect has happened: it must be recorded, while this worker is allowed to.
                if not self.executor.owns(self.claim, time.monotonic()):
                    self.lose()
            self.refuse_stopped()
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - a jitter
            pause = min(pause * 2, 1.0)

    def stored(self, row: StepRow) -> StepRow:
        """Takes note of a row that was written. A result is progress: attempts are counted anew (R6, R8)."""
        if row.wait is not None:
            row = msgspec.structs.replace(row, wait=row.wait + time.monotonic() - self._read_at)
        self.rows[row.key] = row
        if row.state == "done":
            if self.claim.attempt > 1 or self.claim.lost:
                self.claim = self.watch.claim = msgspec.structs.replace(self.claim, attempt=1, lost=0)
            self.on_progress()
        if row.kind in ("wait", "children") and row.is_stored:
            self.watch.waited(row)
        return row

    def new_row(self, asked: Asked, kind: StepKind, arguments: str | None) -> StepRow:
        """Returns the row of a step that begins now, or the one it has. Abort: the run has too many (R14)."""
        if asked.row is not None:
            return asked.row
        if len(self.rows) >= MOST_STEPS:
            self.stop(
                Abort("TOO_MANY_STEPS", f"a run has at most {MOST_STEPS:,} steps: begin anew with ctx.restart(…)")
            )
            self.refuse_stopped()
        sealed = None if arguments is None else self.runtime.seal_text(self.claim, arguments)
        return StepRow(
            key=asked.key, number=asked.number, name=asked.name, kind=kind, state="open", arguments=sealed,
            replay=self.claim.replay_count, started=time.time(),
        )  # fmt: skip

    # ------------------------------------------------------------------------------- working and waiting

    @asynccontextmanager
    async def working(self, asked: Asked) -> AsyncIterator[None]:
        """A step that is under way: meanwhile the run does not park. The run is not begun without its lease (I12)."""
        if not self.executor.owns(self.claim, time.monotonic()):
            self.lose()
        self.refuse_stopped()
        place = (asked.name, asked.key.removeprefix(f"{asked.name}:").partition("#")[0])
        self._under_way.add(place)
        self._parking.begin()
        try:
            yield
        finally:
            self._under_way.discard(place)
            self._parking.end()

    @contextmanager
    def at_cancel(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `stop` ends what it waits for when the run is cancelled, or its attempt is over."""
        self._at_cancel.add(stop)
        try:
            yield
        finally:
            self._at_cancel.discard(stop)

    def refuse_stopped(self) -> None:
        """Ends the attempt at this boundary between steps, if it is to end (R8)."""
        if not self.stopped.done():
            if self.cancelling:
                self.stop(Abort("CANCELLED", "cancelled while running"))
            elif self.executor.is_draining():
                self.stop(park(0.0))
        if self.stopped.done() or self._over:
            raise RunStopped

    async def wait(self, seconds: float) -> None:
        """Waits: in the slot while other branches of the run go on, otherwise parked."""
        await self._parking.wait(seconds)
        self.refuse_stopped()

    def _park(self, seconds: float) -> None:
        self.watch.parked((self.left(self.rows[key]), self.rows[key]) for key in self.used & self.rows.keys())
        self.stop(park(seconds))

    # ------------------------------------------------------------------------------------------- ending

    def stop(self, how: AttemptEnd) -> None:
        """Ends the attempt with this outcome. The first one counts."""
        if not self.stopped.done():
            self.stopped.set_result(how)

    def lose(self) -> None:
        """Ends the attempt because the worker has lost the run. The settle is fenced: it changes nothing."""
        self.watch.is_lost = True
        self.stop(Retry(reason="LEASE_LOST", detail="this worker had lost the run"))

    def cancel(self) -> None:
        """Ends the attempt at the next boundary between steps (R8): now, if none is under way."""
        self.cancelling = True
        for stop in tuple(self._at_cancel):
            stop()
        if not self._parking.is_busy:
            self.stop(Abort("CANCELLED", "cancelled while running"))

    def close(self) -> None:
        """The attempt is over: branches that its function left behind begin nothing more."""
        self._over = True
        # The next attempt calls these steps again, and may store them while the processes of this one still run.
        for stop in tuple(self._at_cancel):
            stop()
        self.watch.add_counts()
        self._parking.cancel_waits()

    def unused(self) -> list[StepRow]:
        """Returns the stored steps that this attempt did not ask for: the code took another way."""
        return [row for key, row in self.rows.items() if key not in self.used and row.state != "rewound"]
