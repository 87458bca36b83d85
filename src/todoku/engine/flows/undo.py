"""Undoing a run that was given up: a run of its own, which undoes its steps in reverse, each as a step (R4, R5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec

from todoku.core.failure import DeliveryError, classify
from todoku.core.flow import ChildBatch, StepRow
from todoku.core.outcome import Retry, Snooze
from todoku.core.sealed import parse_sealed_result
from todoku.core.status import Status
from todoku.engine.flows.children import cancel_messages
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.runtime import FlowRuntime
from todoku.engine.flows.step_function import find_undo, undo_arguments
from todoku.store.undos import is_undoable

_LONGEST_PAUSE = 60


async def undo_run(ctx: Flow, run: str, message_seq: int, workflow: str, reason: str | None) -> None:
    """Undoes the steps of a run: cancels its children and waits for their ends, then undoes the last step first."""
    runtime, call_store = ctx.run.runtime, ctx.run.call_store
    rows = await call_store(lambda: runtime.store.runs.steps(message_seq))
    children = [child for row in rows if row.kind == "children" and row.state == "open" for child in _children(row)]
    if children:
        ids = [id for id, _ in children]
        await call_store(lambda: cancel_messages(runtime.store, ids, f"its run was given up: {reason}"))
    pause = 1
    while await call_store(lambda: _is_any_open(runtime, children)):
        await ctx.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    for row in reversed(rows):
        if row.kind == "step" and is_undoable(row):
            await _undo_step(ctx, row, run, workflow)
            await call_store(partial(runtime.store.runs.mark_undone, message_seq, row.key))
    await call_store(lambda: runtime.store.runs.mark_undone(message_seq, "~undo"))
    ctx.run.watch.undone()


async def _undo_step(ctx: Flow, row: StepRow, run: str, workflow: str) -> None:
    """Calls the undo of one step with its result, or with None if its result is not known."""
    opener = ctx.run.runtime.opener
    function, first = find_undo(opener.step(row.undo or "", run, workflow))
    stored = None if row.result is None or row.state != "done" else row.result
    result = None if stored is None else opener.step(stored, run, workflow)

    is_sealed = parse_sealed_result(row.undo or "") is not None

    async def undo() -> None:
        try:
            await ctx.run.call(function, undo_arguments(function, first, result), {})
        except Exception as error:
            how = classify(error)
            if not is_sealed or isinstance(how, Snooze):
                raise
            # As of an encrypted message: its text may quote what it was called with.
            raise DeliveryError(how.reason, type(error).__name__, retryable=isinstance(how, Retry)) from None

    # What it is called with stays out of its own step: the run may be encrypted.
    await ctx.named_step(f"undo {row.name}", undo, key=row.key)


def _children(row: StepRow) -> list[tuple[UUID, str]]:
    known = msgspec.json.decode(row.arguments or "", type=ChildBatch)
    return [(UUID(id), job) for id, job in zip(known.messages, known.jobs, strict=True)]


def _is_any_open(runtime: FlowRuntime, children: Sequence[tuple[UUID, str]]) -> bool:
    ended = (Status.SUCCEEDED, Status.ABORTED)
    standings = [runtime.store.deliveries.standing(id, (job,)) for id, job in children]
    return any(standing is not None and standing.status not in ended for standing in standings)
