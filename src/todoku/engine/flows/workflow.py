"""Workflows as people declare, start and signal them: `@box.workflow`, `fulfil.start(…)`, `box.signal(…)`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Final, Literal, Protocol, Unpack, cast, overload
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting, StepFailed
from todoku.core.flow import RUN
from todoku.core.message import Claimed
from todoku.core.outcome import Abort
from todoku.engine.context import Context
from todoku.engine.deliveries import parse_message_id
from todoku.engine.execute import Executor
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.operations import signal_text
from todoku.engine.flows.run import drive
from todoku.engine.flows.runtime import ON_CHANGES, FlowRuntime, OnChange, Sleeps
from todoku.engine.flows.step_function import StepFunctions
from todoku.engine.flows.step_writer import StepWriter
from todoku.engine.flows.undo import undo_run
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.handler import is_async
from todoku.engine.jobs.job import Handler, Job, P, R
from todoku.engine.jobs.options import JobOptions
from todoku.engine.observability.log import Log
from todoku.engine.registry import Target
from todoku.engine.twins import asynchronous, blocking
from todoku.store.runs import signal
from todoku.store.undos import undo_destination

UndoWhen = Literal["auto", "always"]
"""When the steps of a run that became a dead letter are undone: unless a person may mend it, or always (R5)."""

_UNDO_WHEN: Final[tuple[UndoWhen, ...]] = ("auto", "always")
_NOT_FOR_WORKFLOWS: Final = {
    "ordered": "a run that waits would block its key for days",
    "on_dead": "it belongs to ordered=True",
    "transactional": "its steps may be: ctx.step(…, transactional=True)",
    "run": "its function is async, and its plain steps run in threads",
}


class WorkflowOptions(JobOptions, total=False):
    """How the runs of a workflow are run: the keywords of `@box.workflow`, which are those of a job and two more.

    `on_change`: what a run does whose code calls a step with other arguments than the stored ones: "stop", as a dead
    letter STEP_CHANGED, or "run". `undo`: when the steps of a dead run are undone by themselves: "auto", not if it may
    still be mended and replayed, or "always".
    """

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


class DeclareWorkflow(Protocol):
    """The decorator that makes a function a workflow. `ctx` is not part of its own signature."""

    def __call__(self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]:
        """Returns the function as a workflow."""


class Workflows:
    """Declares workflows, and sends signals to their runs. `box.workflow` and `box.signal` are methods of it."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._functions = StepFunctions(declarations.outbox.secrets)
        self._writer = StepWriter(declarations.outbox.store)
        self.sleeps = Sleeps()

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, name: str | None = None, /, **options: Unpack[WorkflowOptions]) -> DeclareWorkflow: ...
    def workflow(self, name: Any = None, /, **options: Unpack[WorkflowOptions]) -> Any:
        """Makes an async function a workflow: `@box.workflow`, or `@box.workflow(name, queue=…, max_attempts=…, …)`.

        Its first parameter is `ctx: todoku.Flow`. `max_attempts` counts failures without progress: each stored step
        begins the count anew, and the time of `timeout`. The options are explained at WorkflowOptions.
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
        self._declare_undo(made.handler, runtime)
        return made

    def _declare_undo(self, handler: Handler, runtime: FlowRuntime) -> None:
        """Serves the messages that undo runs: each is a run of its own, with a step for each that is undone."""
        name, options = undo_destination(handler.target.name), JobOptions(queue=handler.route.queue)
        undoing = self._declarations.handler(undo_run, name, options)
        self._declarations.registry.add(_as_run(undoing.target, runtime))

    @blocking("box")
    async def signal(self, run: UUID | str | Handle[Any], name: str, payload: object = None, *, tx: Any) -> None:
        """Sends a value to a run, in your own transaction `tx` (None: one of its own).

        The oldest `ctx.wait(name, …)` of the run that has none gets it, also if it comes later. NotThere: there is no
        such run, or it has ended.
        """
        outbox = self._declarations.outbox
        text = signal_text(name, payload)
        id = run.id if isinstance(run, Handle) else run if isinstance(run, UUID) else parse_message_id(run)
        await outbox.run(tx, signal(outbox.publishing(), id, name, text))
        if tx is None:
            outbox.wake()

    asignal = asynchronous(signal)


def _checked(
    function: Callable[..., Any], options: WorkflowOptions
) -> tuple[OnChange, UndoWhen, JobOptions]:  # fmt: skip
    called = getattr(function, "__name__", repr(function))
    if not is_async(function):
        raise InvalidSetting(
            f"{called} is not async", hint="write async def: its steps may be plain functions, which run in threads"
        )
    for option, why in _NOT_FOR_WORKFLOWS.items():
        if options.get(option):
            raise InvalidSetting(f"{called}: a workflow has no {option}", hint=why)
    rest: dict[str, Any] = {**options}
    on_change, undo = rest.pop("on_change", "stop"), rest.pop("undo", "auto")
    if on_change not in ON_CHANGES:
        raise InvalidSetting(f"{called}: on_change cannot be {on_change!r}", hint='"stop" or "run"')
    if undo not in _UNDO_WHEN:
        raise InvalidSetting(f"{called}: undo cannot be {undo!r}", hint='"auto" or "always"')
    return on_change, undo, cast("JobOptions", rest)


def _as_run(target: Target, runtime: FlowRuntime) -> Target:
    """Returns the target with a Flow as its context."""
    assert target.call is not None  # noqa: S101 - it is a handler
    return msgspec.structs.replace(target, context=partial(_context, runtime), call=partial(_run, target.call))


def _context(runtime: FlowRuntime, claim: Claimed, ends: float, executor: Executor) -> Flow:
    return Flow(claim, ends, executor, runtime)


async def _run(call: Callable[[Context], Any], flow: Flow) -> Any:
    """Runs one attempt of a run. Returns its value, or how it was stopped."""
    run = flow.run
    try:
        value = await drive(run, lambda: call(flow))
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
        Log(message_id=flow.claim.message_id, adapter=flow.claim.destination).warning("STEPS_UNUSED", steps=unused)
    return value
