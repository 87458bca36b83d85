"""Flow: what the function of a workflow may do. Each call is a step: stored once, and returned at once ever after."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID, uuid4

import msgspec

from todoku.core.backoff import DEFAULT, Backoff, delay
from todoku.core.errors import InvalidMessage, StepFailed
from todoku.core.flow import TIMED_OUT, StepRow, sort_names
from todoku.core.message import Claimed, Draft
from todoku.core.outcome import DONE, Abort, Duration, Snooze
from todoku.engine.context import Context
from todoku.engine.flows import children
from todoku.engine.flows.raised import as_exceptions
from todoku.engine.flows.run import Asked, Run, RunStopped
from todoku.engine.flows.step_checks import (
    check_publish_options,
    checked_backoff,
    checked_key,
    signal_decoder,
    sleep_seconds,
    wait_seconds,
)
from todoku.engine.flows.step_function import StepFunction, bounded, describe_undo, unwrap
from todoku.engine.flows.step_process import StepRun, call_in_process, checked_run, reference_of
from todoku.engine.jobs.decoders import decoder
from todoku.engine.jobs.job import Call
from todoku.engine.jobs.options import PublishOptions, checked_attempts, checked_duration
from todoku.engine.observability.tracing import without_span
from todoku.engine.publish import encode

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one step is run."""

    undo: str | None = None
    transactional: bool = False
    max_attempts: int | None = None
    backoff: Backoff = DEFAULT
    timeout: float | None = None
    run: StepRun = "auto"


class StepCall(msgspec.Struct, frozen=True):
    """What a step calls, and with which arguments."""

    called: StepFunction
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Flow(Context):
    """One run of a workflow, as its function sees it: `async def fulfil(ctx: todoku.Flow, order_id: int) -> str`.

    Everything that has an effect, takes time, or differs from one call to the next belongs in a step. Between steps the
    function may be called again, from its beginning, at any time.
    """

    __slots__ = ("_run", "_seconds", "_thread")

    stops_itself = True

    def __init__(self, claim: Claimed, ends: float, run: Run) -> None:
        super().__init__(claim, ends)
        self._seconds = ends - time.monotonic()
        self._run = run
        self._thread: int | None = None
        self._run.on_progress = self._progress

    @property
    def run(self) -> Run:
        """The steps of this run: for the engine, not for workflows."""
        return self._run

    @property
    def thread(self) -> int | None:
        """The thread in which the function of a plain workflow runs now."""
        return self._thread

    def _progress(self) -> None:
        """A step was stored: the time of the attempt begins anew (R8), and so do its attempts (R6)."""
        self._ends = time.monotonic() + self._seconds
        self.claim = self._run.claim

    def cancel(self) -> None:
        """Stops the run at the next boundary between steps."""
        super().cancel()
        self._run.cancel()

    # ------------------------------------------------------------------------------------------- steps

    @overload
    async def step(
        self, function: Callable[[Any, *Ts], R], /, *args: *Ts, transactional: Literal[True],
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,  # noqa: ASYNC109 - of the step
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts,
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,  # noqa: ASYNC109 - of the step
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, function: Callable[[*Ts], R], /, *args: *Ts, run: StepRun = "auto",
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,  # noqa: ASYNC109 - of the step
    ) -> R: ...  # fmt: skip
    async def step(  # type: ignore[misc]  # the arguments of the function, then options by name
        self, function: Callable[..., Any], /, *args: Any, transactional: bool = False, run: StepRun = "auto",
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,  # noqa: ASYNC109 - of the step
    ) -> Any:  # fmt: skip
        """Calls a function, async or not, once: its result is stored, and returned whenever the run comes here again.

        It may run more than once if a worker dies before the result is stored. `transactional`: its first argument is
        an open transaction that commits together with the result, so its effect happens once (I6). `undo`: called with
        the result (None: not known) if the run is given up. `key`: tells equal calls apart. `max_attempts`, `backoff`,
        `timeout`: of this step; without `max_attempts` an exception is the run's, which is retried as a whole. A step
        that has failed so often raises StepFailed. `run="process"`: a plain function at the top of a module runs in a
        process of the worker, which is killed at `timeout`. Pass keyword arguments by `functools.partial`.
        """
        plain, first, kwargs = unwrap(function)
        called = self._run.runtime.functions.of(plain, transactional=transactional)
        options = StepOptions(
            undo=None if undo is None else describe_undo(undo),
            transactional=transactional,
            max_attempts=checked_attempts(max_attempts, None, InvalidMessage),
            backoff=checked_backoff(backoff),
            timeout=None if timeout is None else checked_duration(timeout, "timeout", InvalidMessage),
            run=checked_run(plain, called, run, transactional=transactional),
        )
        return await self._step(
            called.name, StepCall(called, plain, (*first, *args), kwargs), options, checked_key(key), may_skip=False
        )

    async def named_step(self, name: str, function: Callable[[], Awaitable[None]], *, key: str) -> None:
        """Calls a function of todoku's own as a step of this name. An attempt need not ask for those it has stored."""
        called = self._run.runtime.functions.of(function)
        await self._step(name, StepCall(called, function, (), {}), StepOptions(), key, may_skip=True)

    async def _step(self, name: str, to: StepCall, options: StepOptions, key: str | None, *, may_skip: bool) -> Any:
        run, arguments = self._run, to.called.encode(to.args, to.kwargs)
        asked = run.ask(name, arguments, key)
        row = asked.row
        if row is None and not may_skip:
            await run.refuse_changed(asked, arguments)
        while row is None or not (row.is_stored or row.state == "fatal"):
            if row is not None and 0 < (left := run.left(row)) < float("inf"):
                await run.wait(left)  # the pause before its next attempt
            row = await _attempt(run, asked, to, options, arguments)
        if row.state != "done":
            raise StepFailed(f"{name} failed {row.attempts} times: {row.error}", step=row.key)
        return run.read(name, row.result, to.called.decode)

    def _seal(self, text: str) -> str:
        return self._run.runtime.seal_text(self.claim, text)

    # ------------------------------------------------------------------------------------ sleep and wait

    async def sleep(
        self, duration: Duration = 0, /, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Waits without a slot, a lease or a connection, however long: `await ctx.sleep(hours=1)`."""
        total = sleep_seconds(duration, days=days, hours=hours, minutes=minutes, seconds=seconds)
        text = f"{total:g}"
        asked = self._run.ask("sleep", text, alike=True)
        if asked.row is None:
            wait = 0.0 if self._run.runtime.sleeps.skipped else total
            row = msgspec.structs.replace(self._run.new_row(asked, "sleep", None), arguments=text, wait=wait)
            async with self._run.working(asked):
                await self._run.write(row)
            self._run.watch.slept(row)
        while (left := self._run.left(self._run.rows[asked.key])) > 0:
            await self._run.wait(left)
        self._run.watch.woke(self._run.rows[asked.key], total)

    async def wait(self, name: str, kind: type[T] = Any, *, timeout: Duration | None = None) -> T:  # type: ignore[assignment]  # noqa: ASYNC109 - of the signal
        """Waits for a signal of this name, without a slot or a lease, and returns its value as a `kind`.

        A signal that was sent before is there already. Each goes to one wait, the oldest first. TimeoutError if none
        comes in time.
        """
        limit, decode = None if timeout is None else wait_seconds(timeout), signal_decoder(name, kind)
        asked = self._run.ask("wait", encode(name), alike=True)
        while (row := self._run.rows.get(asked.key, asked.row)) is None or not row.is_stored:
            over = row is not None and self._run.left(row) <= 0
            row = await self._take(asked, row, name, limit)
            if row.is_stored:
                break
            if over:
                async with self._run.working(asked):
                    row = await self._run.write(
                        msgspec.structs.replace(row, state="failed", error=TIMED_OUT, awaits=None)
                    )
                break
            await self._run.wait(self._run.left(row))
        if row.state == "failed":
            raise TimeoutError(f"no signal {name!r} came in time")
        return self._run.read(name, row.result, decode)  # type: ignore[no-any-return]

    async def _take(self, asked: Asked, row: StepRow | None, name: str, limit: float | None) -> StepRow:
        run = self._run
        if row is None:
            row = msgspec.structs.replace(run.new_row(asked, "wait", None), arguments=encode(name), wait=limit)
        left = (
            run.left(row) if row.key in run.rows or asked.row is not None else float("inf") if limit is None else limit
        )
        waiting = msgspec.structs.replace(
            row, awaits=name, state="open", wait=None if left == float("inf") else max(left, 0.0)
        )

        keep = partial(run.runtime.keep_signal, self.claim, name)
        async with run.working(asked):
            written = await run.write_by(lambda: run.runtime.store.runs.take_signal(self.claim, name, keep, waiting))
            return run.stored(written)

    # ---------------------------------------------------------------------------------------- children

    async def gather(self, *calls: Call[R], return_exceptions: bool = False) -> list[R]:
        """Runs jobs as children, `ctx.gather(pick.call(1), pick.call(2))`, and returns their results in order.

        The run holds nothing while they run. A child that becomes a dead letter raises JobAborted once all have ended;
        with `return_exceptions` it stands in the list instead.
        """
        return await children.gather(self, calls, return_exceptions=return_exceptions)

    async def race(self, *calls: Call[R]) -> R:
        """Runs jobs as children and returns the result of the first that succeeds; the others are cancelled.

        JobAborted if all of them become dead letters.
        """
        return await children.race(self, calls)

    async def publish(self, event: Any, payload: object = None, **options: Unpack[PublishOptions]) -> UUID:
        """Publishes an event, or a topic and its payload, once: the message and the step are one commit."""
        check_publish_options(options)
        declarations = self._run.runtime.declarations
        draft = declarations.draft(event, payload, options)
        text = bounded(declarations.plain_text(event, payload), f"the payload of {draft.topic}")
        asked = self._run.ask(f"publish {draft.topic}", sort_names(text))
        if asked.row is None:
            await self._run.refuse_changed(asked, text)
        row = await self._publish(asked, draft, text)
        return UUID(msgspec.json.decode(row.result or "null", type=str))

    async def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Ends this run, without a result, and begins another of the same workflow with these arguments, once.

        For runs that go on for ever, before they have too many steps (R14). The other run has the key, the priority
        and the queue of this one. Nothing of this run is undone or rewound any more.
        """
        call = self._run.runtime.next_run(self.claim).call(*args, **kwargs)
        text = bounded(call.payload.text, f"the arguments of {call.job}")
        with without_span():  # a run has a trace of its own: one that goes on for ever would never end
            draft = call.draft()
        # By a key, not by its arguments: a run is followed by one other, whatever the code says now.
        await self._publish(self._run.ask("restart", text, key=""), draft, text)
        self._run.stop(DONE)
        raise RunStopped

    async def _publish(self, asked: Asked, draft: Draft, text: str) -> StepRow:
        """Publishes a message with its step, in one commit, unless that is stored. The step returns its id."""
        if (stored := asked.row) is not None and stored.is_stored:
            return stored
        begun = self._run.new_row(asked, "publish", text)
        row = msgspec.structs.replace(begun, state="done", result=encode(str(draft.id)))
        runs = self._run.runtime.store.runs
        async with self._run.working(asked):
            with self._run.watch.step(asked, self._run.rows, "publish"):
                await self._run.write_by(lambda: runs.publish(self.claim, row, [draft]))
                self._run.stored(row)
        self._run.runtime.outbox.wake()
        return row

    # ------------------------------------------------------------------------------------------- values

    async def now(self, *, key: str | None = None) -> datetime:
        """Returns the time at which the run came here first. `key`: tells calls in concurrent branches apart."""
        return await self._value("now", lambda: datetime.now(UTC), datetime, key)

    async def random(self, *, key: str | None = None) -> float:
        """Returns a random number, 0 ≤ n < 1: the same whenever the run comes here again. `key`: as of `now`."""
        return await self._value("random", random.random, float, key)

    async def uuid(self, *, key: str | None = None) -> UUID:
        """Returns a random UUID: the same whenever the run comes here again. `key`: as of `now`."""
        return await self._value("uuid", uuid4, UUID, key)

    async def version(self, name: str) -> bool:
        """Whether this run takes the changed way: `if await ctx.version("charge-v2"): …`.

        True for runs that come here for the first time after the change, and for those ever after; False for a run that
        went past this place with the old code.
        """
        known = {key for key, row in self._run.rows.items() if row.state != "rewound"}
        went_past = bool(known - self._run.used)
        asked = self._run.ask("version", encode(name))
        if asked.row is None and went_past:
            return False
        return await self._value_of(asked, lambda: True, bool)

    async def _value(self, name: str, make: Callable[[], T], kind: type[T], key: str | None) -> T:
        return await self._value_of(self._run.ask(name, "", checked_key(key), alike=True), make, kind)

    async def _value_of(self, asked: Asked, make: Callable[[], T], kind: type[T]) -> T:
        row = asked.row
        if row is None or not row.is_stored:
            row = msgspec.structs.replace(
                self._run.new_row(asked, "value", None), state="done", result=self._seal(encode(make()))
            )
            async with self._run.working(asked):
                with self._run.watch.step(asked, self._run.rows, "value"):
                    await self._run.write(row)
        return self._run.read(asked.name, row.result, decoder(kind, asked.name))  # type: ignore[no-any-return]


async def _attempt(run: Run, asked: Asked, to: StepCall, options: StepOptions, arguments: str) -> StepRow:
    """Calls the function of a step once, and stores what it came to. Returns its row.

    Raises what the function raised, if the step has no attempts of its own.
    """
    async with run.working(asked):
        with run.watch.step(asked, run.rows):
            return await _try(run, asked, to, options, arguments)


async def _try(run: Run, asked: Asked, to: StepCall, options: StepOptions, arguments: str) -> StepRow:
    row = run.rows.get(asked.key) or asked.row or run.new_row(asked, "step", arguments)
    undo = None if options.undo is None else run.runtime.seal_text(run.claim, options.undo)
    row = msgspec.structs.replace(row, undo=undo, wait=None, replay=run.claim.replay_count)
    if options.undo is not None and asked.key not in run.rows:
        row = await run.write(row)  # R4: what is not known to have happened can be undone, too
    began = time.monotonic()
    try:
        with as_exceptions():
            if options.transactional:
                return await _transact(run, to, row, began)
            value = await _call(run, to, options, arguments)
        return await run.write(_done(run, to.called, row, value, began))
    except (Abort, Snooze, InvalidMessage):
        raise
    except Exception as error:
        if options.max_attempts is None:
            raise
        return await _failed(run, row, error, options)


async def _call(run: Run, to: StepCall, options: StepOptions, arguments: str) -> Any:
    """Calls the function of a step where it is to run. TimeoutError: it takes longer than the step may."""
    began = time.monotonic()
    try:
        if options.run == "process":
            name = to.called.name
            return await call_in_process(run, name, reference_of(to.function, name), arguments, options.timeout)
        return await run.call(to.function, to.args, to.kwargs, options.timeout)
    except TimeoutError as error:
        if options.timeout is None or time.monotonic() - began < options.timeout or str(error):
            raise
        raise TimeoutError(f"{to.called.name} did not end within {options.timeout:g} s") from None


async def _transact(run: Run, to: StepCall, row: StepRow, began: float) -> StepRow:
    """Calls a plain function with an open transaction, which commits with its step."""
    store, limit = run.runtime.store, run.lease_seconds / 4

    def work(connection: Any) -> StepRow:
        return _done(run, to.called, row, to.function(connection, *to.args, **to.kwargs), began)

    return await run.transact(lambda: store.runs.transact(run.claim, work, limit=limit), row.key)


def _done(run: Run, called: StepFunction, row: StepRow, value: Any, began: float) -> StepRow:
    result = run.runtime.seal_text(run.claim, called.encode_result(value))
    return msgspec.structs.replace(row, state="done", result=result, error=None, took=time.monotonic() - began)


async def _failed(run: Run, row: StepRow, error: Exception, options: StepOptions) -> StepRow:
    """Counts a failed attempt of a step that has attempts of its own. The last one is what the step came to."""
    attempts = row.attempts + 1
    row = msgspec.structs.replace(row, attempts=attempts, error=run.runtime.error_of(run.claim, error))
    if options.max_attempts is not None and attempts >= options.max_attempts:
        return await run.write(msgspec.structs.replace(row, state="failed"))
    pause = delay(options.backoff, attempts, jitter=random.random())  # noqa: S311 - a jitter
    return await run.write(msgspec.structs.replace(row, state="open", wait=pause))
