"""Tries the code of a workflow on a recorded history of a run: what the run would do if it went on with this code.

Stored steps return what is recorded. Nothing is called, written, published or waited for: where the code begins a step
that is not stored, that branch of it stops. The rules are those of `Run`; only what it reads and begins differs.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from todoku.core.decision import Settlement
from todoku.core.errors import InvalidMessage
from todoku.core.failure import classify
from todoku.core.flow import EFFECTS, StepKind, StepRow, StepState
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.execute import outcome_of
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.history import HistoryStep, RunHistory
from todoku.engine.flows.history_replay import AskedStep, ChangedStep, HistoryReplay, RunEnd, UnreadableResult
from todoku.engine.flows.run import Asked, Run
from todoku.engine.flows.runtime import FlowRuntime
from todoku.engine.jobs.job import here_and_now
from todoku.engine.observability.metrics import Metrics
from todoku.engine.publish import encode
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.step_pools import StepPools
from todoku.engine.worker.thread_pool import Errand

T = TypeVar("T")

_WRONG_CODE: Final = frozenset({"INVALID_STEP", "BAD_PAYLOAD"})
"""Reasons that todoku gives for code that does not fit the run, and not the code itself."""


async def replay(
    runtime: FlowRuntime, history: RunHistory, *, new: Mapping[str, object], removed: Collection[str]
) -> HistoryReplay:
    """Calls the workflow's present function with the recorded steps. Returns what it did, and where it stopped.

    `new`: what steps return that the history does not have, by their names. `removed`: names of steps that the code
    does not call any more, on purpose.
    """
    assert runtime.workflow is not None  # noqa: S101 - set where it is declared
    target = runtime.workflow.target
    run = _ReplayedRun(_claim(runtime, history), runtime, history, new)
    flow = _ReplayedFlow(run.claim, math.inf, run)
    assert target.call is not None  # noqa: S101 - it is a handler
    outcome: Outcome | Settlement
    failure: Exception | None = None
    try:
        outcome = outcome_of(await target.call(flow), target, run.claim)
    except Exception as error:  # noqa: BLE001 - the code that is tried may raise anything: that is in the report
        outcome, failure = classify(error, target.retrying), error
    end = _end(outcome)
    return HistoryReplay(
        history=history, next=tuple(run.reached.values()), changed=run.changed, unreadable=tuple(run.unreadable),
        unused=run.unused_steps(removed), versions=flow.versions, end=end, failure=_failed(outcome, failure),
    )  # fmt: skip


def _claim(runtime: FlowRuntime, history: RunHistory) -> Claimed:
    assert runtime.workflow is not None  # noqa: S101 - set where it is declared
    return msgspec.structs.replace(
        here_and_now(runtime.workflow.handler), epoch=2, message_id=str(history.id), key=history.key,
        payload=encode(history.arguments), headers=encode(history.headers) if history.headers else None,
        replay_count=history.replays, created_at=history.started.timestamp(),
    )  # fmt: skip


def _end(outcome: Outcome | Settlement) -> RunEnd | None:
    match outcome:
        case Done(result=result):
            return RunEnd(status="succeeded", result=None if result is None else msgspec.json.decode(result))
        case Abort(reason="STEP_CHANGED") | Snooze() | Settlement():
            return None
        case Abort(reason=reason, detail=detail):
            return RunEnd(status="aborted", reason=reason, error=detail or reason)
        case Retry(reason=reason, detail=detail):
            return RunEnd(status="failed", reason=reason, error=detail or reason)


def _failed(outcome: Outcome | Settlement, failure: Exception | None) -> str | None:
    """What went wrong in the code, if that is not what it decided itself: to abort, or to be tried again."""
    decided = failure is None or isinstance(failure, Retry | Abort | Snooze)
    if not isinstance(outcome, Retry | Abort) or (decided and outcome.reason not in _WRONG_CODE):
        return None
    return f"{outcome.reason}: {outcome.detail or failure}"


class _Nobody:
    """No worker: a replay owns nothing, and drains nothing."""

    lease: Lease

    def __init__(self) -> None:
        self.is_draining: Callable[[], bool] = lambda: False
        self.step_pools = StepPools(1, _lend_nothing, ())  # for the function of a plain workflow: no step is begun

    def owns(self, claim: Claimed, now: float) -> bool:  # noqa: ARG002 - the form of an Owner
        return False


def _lend_nothing(_errand: Errand) -> None:
    raise AssertionError("a replay begins no step")


class _ReplayedRun(Run):
    """A run whose steps come from a history. What is not stored is not begun: its branch waits, and the run parks."""

    def __init__(
        self, claim: Claimed, runtime: FlowRuntime, history: RunHistory, new: Mapping[str, object]
    ) -> None:  # fmt: skip
        super().__init__(claim, _Nobody(), runtime, Metrics())  # which nobody reads
        self._history = history
        self._new = new
        self._known = {step.name for step in history.steps if step.kind in EFFECTS}
        self._names: set[str] = set()
        self._arguments: dict[str, str] = {}
        self._kinds: dict[str, StepKind] = {}
        self.reached: dict[str, AskedStep] = {}
        self.changed: ChangedStep | None = None
        self.unreadable: list[UnreadableResult] = []

    async def stored_steps(self) -> Sequence[StepRow]:
        return [_row(step) for step in self._history.steps]

    def secret(self) -> bytes:
        return bytes.fromhex(self._history.secret or "")

    def ask(self, name: str, arguments: str, key: str | None = None, *, alike: bool = False) -> Asked:
        asked = super().ask(name, arguments, key, alike=alike)
        self._names.add(name)
        self._arguments[asked.key] = arguments
        if asked.row is None and name in self._new and name not in self._known:
            row = StepRow(
                asked.key, asked.number, name, "step", "done", arguments, encode(self._new[name]), wait=0.0
            )  # fmt: skip
            asked = msgspec.structs.replace(asked, row=self.stored(row))
        return asked

    async def stop_changed(self, asked: Asked, arguments: str, changed: Sequence[StepRow]) -> None:
        self.changed = ChangedStep(step=self._step(changed[0]), arguments=msgspec.json.decode(arguments))
        self.stop(Abort("STEP_CHANGED", asked.name))

    def read(self, name: str, text: str | None, decode: Callable[[str], Any]) -> Any:
        try:
            return super().read(name, text, decode)
        except (InvalidMessage, msgspec.DecodeError) as error:
            value = None if text is None else msgspec.json.decode(text)
            self.unreadable.append(UnreadableResult(name=name, result=value, error=str(error)))
            raise

    def left(self, row: StepRow) -> float:
        """A sleep that is under way counts as over: what comes after it is tried, too."""
        return math.inf if row.wait is None else 0.0

    def new_row(self, asked: Asked, kind: StepKind, arguments: str | None) -> StepRow:
        self._kinds[asked.key] = kind
        return super().new_row(asked, kind, arguments)

    @asynccontextmanager
    async def working(self, asked: Asked) -> AsyncIterator[None]:
        """Here the history ends for this branch, unless it only draws a value: that has no effect."""
        kind = self._kinds.get(asked.key, "step" if asked.row is None else asked.row.kind)
        if kind != "value":
            arguments = msgspec.json.decode(self._arguments[asked.key] or "null")
            self.reached[asked.key] = AskedStep(
                name=asked.name, kind=kind, arguments=arguments, begun=asked.row is not None
            )
            await self.wait(math.inf)
        yield

    async def write(self, row: StepRow) -> StepRow:
        return self.stored(row)

    async def _persist(self, write: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - nothing is written
        raise AssertionError("a replay of a history writes nothing")

    async def transact(self, write: Callable[[], StepRow], key: str) -> StepRow:
        raise AssertionError(f"a replay of a history does not begin {key} {write}")

    def unused_steps(self, removed: Collection[str]) -> tuple[HistoryStep, ...]:
        """The stored steps that the code has not asked for, but those that are known to be left over."""
        accepted = self._names if self.runtime.on_change == "run" else set()
        rows = [row for row in self.unused() if row.name not in removed and row.name not in accepted]
        return tuple(map(self._step, rows))

    def _step(self, row: StepRow) -> HistoryStep:
        return next(step for step in self._history.steps if step.key == row.key)


class _ReplayedFlow(Flow):
    """A run as its function sees it, which remembers which ways `version` chose."""

    __slots__ = ("versions",)

    def __init__(self, claim: Claimed, ends: float, run: Run) -> None:
        super().__init__(claim, ends, run)
        self.versions: dict[str, bool] = {}

    async def version(self, name: str) -> bool:
        self.versions[name] = await super().version(name)
        return self.versions[name]


def _row(step: HistoryStep) -> StepRow:
    """The step as it is stored. One that was undone is what it was before: done, or of an unknown result."""
    state: StepState = step.state
    if state == "undone":
        state = "open" if step.result is msgspec.UNSET else "done"
    return StepRow(
        key=step.key, number=step.number, name=step.name, kind=step.kind, state=state,
        arguments=encode(step.arguments), result=None if step.result is msgspec.UNSET else encode(step.result),
        error=step.error, attempts=step.attempts, replay=step.replay, awaits=step.awaits, wait=0.0,
    )  # fmt: skip
