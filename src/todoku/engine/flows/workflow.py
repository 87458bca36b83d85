"""Workflows as people declare, start and signal them: `@box.workflow`, `fulfil.start(…)`, `box.signal(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, Final, Literal, Protocol, Unpack, cast, overload
from uuid import UUID

import msgspec

from todoku.core.decision import park
from todoku.core.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidAct,
    InvalidMessage,
    InvalidSetting,
    StepFailed,
    UnknownJob,
)
from todoku.core.flow import RUN, KeyedRun
from todoku.core.message import MAX_KEY_LENGTH, Claimed
from todoku.core.outcome import Abort
from todoku.engine.context import Context
from todoku.engine.execute import Executor
from todoku.engine.flows.blocking_flow import BlockingFlow
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.flow_thread import FlowThread
from todoku.engine.flows.operations import signal_sealer, signal_text
from todoku.engine.flows.raised import call_workflow
from todoku.engine.flows.run import Run
from todoku.engine.flows.runtime import ON_CHANGES, FlowRuntime, OnChange, Sleeps
from todoku.engine.flows.step_function import StepFunctions
from todoku.engine.flows.step_writer import StepWriter
from todoku.engine.flows.undo import undo_run
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.handler import is_async
from todoku.engine.jobs.hints import Hints
from todoku.engine.jobs.job import Handler, Job, P, R
from todoku.engine.jobs.options import JobOptions
from todoku.engine.observability.log import Log
from todoku.engine.publish import check_text
from todoku.engine.registry import Target
from todoku.engine.twins import asynchronous, blocking
from todoku.store.runs import signal
from todoku.store.undos import undo_destination

UndoWhen = Literal["auto", "always"]
"""When the steps of a run that became a dead letter are undone: unless a person may mend it, or always (R5)."""

_UNDO_WHEN: Final[tuple[UndoWhen, ...]] = ("auto", "always")
_NOT_FOR_WORKFLOWS: Final = {
    "transactional": "its steps may be: ctx.step(…, transactional=True)",
    "run": 'its steps may have it: ctx.step(…, run="process")',
}


class WorkflowOptions(JobOptions, total=False):
    """How the runs of a workflow are run: the keywords of `@box.workflow`, which are those of a job and three more.

    `hold_lane`: with `ordered=True`, which needs it: a run that waits holds up the later runs of its key until it has
    ended. `on_change`: what a run does whose code calls a step with other arguments than the stored ones: "stop", as a
    dead letter STEP_CHANGED, or "run". `undo`: when the steps of a dead run are undone by themselves: "auto", not if it
    may still be mended and replayed, or "always".
    """

    hold_lane: bool
    on_change: OnChange
    undo: UndoWhen


class Workflow(Job[P, R]):
    """A function whose steps are remembered. `start` stores a run of it."""

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"

    def using(self, **options: Any) -> Workflow[P, R]:
        """Returns the same workflow with options for its runs, as `Job.using` does."""
        return cast("Workflow[P, R]", super().using(**options))

    @blocking(lambda workflow: workflow.name)
    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores a run: it commits with `tx`, or in a transaction of its own. The handle's `id` is the run's."""
        return await self._store(*args, **kwargs)

    astart = asynchronous(start)

    def run(self, *, idempotency_key: str) -> KeyedRun:
        """Returns the run that was started with this idempotency key, for `box.signal`. It is not looked up here."""
        check_text(idempotency_key, "idempotency key", MAX_KEY_LENGTH)
        return KeyedRun(idempotency_key, (self.name, *self.aliases))


class DeclareWorkflow(Protocol):
    """The decorator that makes a function a workflow. `ctx` is not part of its own signature."""

    @overload
    def __call__(self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[BlockingFlow, P], R], /) -> Workflow[P, R]:
        """Returns the function as a workflow."""


class Workflows:
    """Declares workflows, and sends signals to their runs. `box.workflow` and `box.signal` are methods of it."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._functions = StepFunctions(declarations.outbox.secrets)
        self._writer = StepWriter(declarations.outbox.store)
        self.sleeps = Sleeps()
        self.runtimes = dict[str, FlowRuntime]()  # by the names of workflows

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, function: Callable[Concatenate[BlockingFlow, P], R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, name: str | None = None, /, **options: Unpack[WorkflowOptions]) -> DeclareWorkflow: ...
    def workflow(self, name: Any = None, /, **options: Unpack[WorkflowOptions]) -> Any:
        """Makes a function a workflow: `@box.workflow`, or `@box.workflow(name, queue=…, max_attempts=…, …)`.

        Its first parameter is `ctx: todoku.Flow`, or `ctx: todoku.BlockingFlow` if it is not async. `max_attempts`
        counts failures without progress: each stored step begins the count anew, and the time of `timeout`. The
        options are explained at WorkflowOptions.
        """
        if callable(name):
            return self._declare(name, None, options)
        return lambda function: self._declare(function, name, options)

    def _declare(self, function: Callable[..., Any], name: str | None, options: WorkflowOptions) -> Workflow[..., Any]:
        declarations = self._declarations
        on_change, undo, rest = _checked(function, options)
        handler = declarations.handler(function, name, {"keep_result": True, **rest})
        runtime = FlowRuntime(declarations, self._functions, self._writer, on_change, self.sleeps)
        target = _as_run(handler.target, runtime)
        made: Workflow[..., Any] = Workflow(
            declarations.outbox, msgspec.structs.replace(handler, target=target, marks={RUN: undo})
        )
        runtime.workflow = made
        declarations.declare(made, rest)
        self.runtimes[made.name] = runtime
        self._declare_undo(made.handler, runtime)
        return made

    def _declare_undo(self, handler: Handler, runtime: FlowRuntime) -> None:
        """Serves the messages that undo runs: each is a run of its own, with a step for each that is undone."""
        name, options = undo_destination(handler.target.name), JobOptions(queue=handler.route.queue)
        undoing = self._declarations.handler(undo_run, name, options)
        self._declarations.registry.add(_as_run(undoing.target, runtime))

    @blocking("box")
    async def signal(
        self, run: UUID | str | Handle[Any] | KeyedRun, name: str, payload: object = None, *, tx: Any
    ) -> None:
        """Sends a value to a run, in your own transaction `tx` (None: one of its own).

        `run`: its handle, its id, or `fulfil.run(idempotency_key=…)`. The oldest `ctx.wait(name, …)` that has none gets
        it, also if it comes later. NotThere: there is no such run, or it has ended. CannotOpen: the run is encrypted,
        and this process does not have its key.
        """
        outbox = self._declarations.outbox
        if isinstance(run, Handle):
            self._refuse_job(run)
        to, text, seal = outbox.publishing(), signal_text(name, payload), signal_sealer(outbox, name)
        await outbox.run(tx, signal(to, _named(run), name, text, seal))
        outbox.telemetry.signalled()
        if tx is None:
            outbox.wake()

    asignal = asynchronous(signal)

    def _refuse_job(self, handle: Handle[Any]) -> None:
        """Refuses the handle of a plain job: nothing there would ever read the signal."""
        with suppress(UnknownJob):  # declared by another program
            if not isinstance(self._declarations.jobs[handle.job], Workflow):
                hint = "signal what fulfil.start(…) has returned; what a job gets are its arguments"
                raise InvalidAct(f"{handle.job} is a job and no workflow", hint=hint)


def _named(run: UUID | str | Handle[Any] | KeyedRun) -> UUID | KeyedRun:
    if isinstance(run, str):
        with suppress(ValueError):
            return UUID(run)
    elif isinstance(run, UUID | KeyedRun):
        return run
    elif isinstance(run, Handle):
        return run.id
    hint = "give its handle, its id, or its key: fulfil.run(idempotency_key=…)"
    raise InvalidAct(f"{run!r} is no id of a run", hint=hint)


def _checked(
    function: Callable[..., Any], options: WorkflowOptions
) -> tuple[OnChange, UndoWhen, JobOptions]:  # fmt: skip
    called = getattr(function, "__name__", repr(function))
    _check_context(function, called)
    for option, why in _NOT_FOR_WORKFLOWS.items():
        if options.get(option):
            raise InvalidSetting(f"{called}: a workflow has no {option}", hint=why)
    rest: dict[str, Any] = {**options}
    _check_lane(called, ordered=rest.get("ordered", False), hold_lane=rest.pop("hold_lane", False))
    on_change, undo = rest.pop("on_change", "stop"), rest.pop("undo", "auto")
    if on_change not in ON_CHANGES:
        raise InvalidSetting(f"{called}: on_change cannot be {on_change!r}", hint='"stop" or "run"')
    if undo not in _UNDO_WHEN:
        raise InvalidSetting(f"{called}: undo cannot be {undo!r}", hint='"auto" or "always"')
    return on_change, undo, cast("JobOptions", rest)


def _check_lane(called: str, *, ordered: bool, hold_lane: bool) -> None:
    """Refuses an order of runs whose declaration does not say that a run which waits holds up the others (R7)."""
    if ordered and not hold_lane:
        hint = "add hold_lane=True if the later runs of its key are to wait for that long, or leave ordered out"
        raise InvalidSetting(f"{called}: a run that waits would block its key, for days perhaps", hint=hint)
    if hold_lane and not ordered:
        raise InvalidSetting(f"{called}: hold_lane is for runs in order", hint="add ordered=True, or leave it out")


def _check_context(function: Callable[..., Any], called: str) -> None:
    """Refuses a plain function that takes the context of an async one, and the other way round."""
    kind = Hints(function, called).context
    if kind is BlockingFlow and is_async(function):
        raise InvalidSetting(
            f"{called} is async, and its ctx blocks", hint="write ctx: todoku.Flow, and await its calls"
        )
    if kind is Flow and not is_async(function):
        raise InvalidSetting(
            f"{called} is not async, and its ctx is", hint="write ctx: todoku.BlockingFlow, or async def"
        )


def _as_run(target: Target, runtime: FlowRuntime) -> Target:
    """Returns the target with a Flow as its context. A plain function, too, has its slot in the event loop."""
    assert target.call is not None  # noqa: S101 - it is a handler
    run = _run if target.run == "loop" else _run_in_thread
    return msgspec.structs.replace(
        target, run="loop", context=partial(_context, runtime), call=partial(run, target.call)
    )


def _context(runtime: FlowRuntime, claim: Claimed, ends: float, executor: Executor) -> Flow:
    return Flow(claim, ends, Run(claim, executor, runtime, executor.telemetry.metrics))


async def _run_in_thread(call: Callable[[Context], Any], flow: Flow) -> Any:
    """Runs one attempt of a run whose function is not async."""
    thread = FlowThread(flow.run, flow.run.executor.step_pools.functions, partial(setattr, flow, "_thread"))
    blocking_flow = BlockingFlow(flow, thread)
    try:
        return await _run(lambda _flow: thread.run(lambda: call(blocking_flow)), flow)
    finally:
        thread.leave()


async def _run(call: Callable[[Context], Any], flow: Flow) -> Any:
    """Runs one attempt of a run. Returns its value, or how it was stopped."""
    run = flow.run
    try:
        value = await _drive(run, lambda: call(flow))
    except StepFailed as failed:
        row = run.rows.get(failed.step)
        if row is None:  # not a step of this run
            raise
        await run.write(msgspec.structs.replace(row, state="fatal", replay=flow.claim.replay_count))
        raise Abort("STEP_FAILED", str(failed)) from failed
    except (InvalidMessage, InvalidSetting) as error:  # the code is wrong: trying again would repeat effects
        raise Abort("INVALID_STEP", str(error)) from error
    finally:
        run.close()
    if not run.stopped.done() and (unused := run.unused()):
        Log(message_id=flow.claim.message_id, adapter=flow.claim.destination).warning(
            "STEPS_UNUSED", steps=[row.name for row in unused]
        )
    return value


async def _drive(run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
    """Calls the function of a workflow until it ends, or the run is stopped. Returns its value, or how that was."""
    try:
        await run.load()
    except (DatabaseUnavailable, DatabaseBusy):  # nothing has begun: the attempt is not counted
        return park(1.0)
    main = asyncio.ensure_future(call_workflow(call))
    try:
        await asyncio.wait((main, run.stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not main.done():
            main.cancel()
            await asyncio.wait((main,))
    if run.stopped.done():
        if not main.cancelled():
            main.exception()  # it was stopped: what it raised on its way out is of no interest
        return run.stopped.result()
    return main.result()
