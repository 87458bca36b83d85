"""The children of a run: ordinary jobs in a batch whose end wakes the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from todoku.core.ending import NewBatch, add_to_batch
from todoku.core.errors import InvalidMessage, JobAborted
from todoku.core.flow import CHILD, ChildBatch, ChildEnd, ChildSuccess, StepRow, awaited_race
from todoku.core.message import Claimed, Draft, with_headers
from todoku.core.status import Status
from todoku.engine import operations
from todoku.engine.flows.runtime import FlowRuntime
from todoku.engine.flows.step_checks import short_name
from todoku.engine.jobs.batches import without_tx
from todoku.engine.jobs.job import Call, drafts
from todoku.engine.outbox import new_id
from todoku.engine.publish import encode
from todoku.store.deliveries import Filter, Standing
from todoku.store.store import Store

if TYPE_CHECKING:
    from todoku.engine.flows.flow import Flow

R = TypeVar("R")


async def gather(flow: Flow, calls: Sequence[Call[R]], *, return_exceptions: bool) -> list[R]:
    """Runs the calls as children of the run; the contract is that of `Flow.gather`."""
    members = without_tx(calls)
    if not members:
        return []
    ends = await _ends(flow, "gather", members, _all_ended)
    results = [_result_of(flow, call, end) for call, end in zip(members, ends, strict=True)]
    if not return_exceptions:
        for result in results:
            if isinstance(result, JobAborted):
                raise result
    return results


async def race(flow: Flow, calls: Sequence[Call[R]]) -> R:
    """Runs the calls as children of the run; the contract is that of `Flow.race`."""
    members = without_tx(calls)
    if not members:
        raise InvalidMessage("a race has no calls", hint="ctx.race(fast.call(…), slow.call(…))")
    ends = await _ends(flow, "race", members, _one_succeeded)
    results = [_result_of(flow, call, end) for call, end in zip(members, ends, strict=True)]
    for end, result in zip(ends, results, strict=True):
        if end.reason is None:
            return result  # type: ignore[no-any-return]
    raise results[0]


Complete = Callable[[FlowRuntime, ChildBatch, Sequence[ChildEnd | None]], list[ChildEnd] | None]
"""Returns how the children ended, once enough of them have; None: the run goes on waiting. Blocks."""


def _all_ended(_runtime: FlowRuntime, _known: ChildBatch, ends: Sequence[ChildEnd | None]) -> list[ChildEnd] | None:
    found = [end for end in ends if end is not None]
    return found if len(found) == len(ends) else None


def _one_succeeded(runtime: FlowRuntime, known: ChildBatch, ends: Sequence[ChildEnd | None]) -> list[ChildEnd] | None:
    """The first that succeeded wins, and the others are cancelled; all of them have failed: that is the end, too."""
    if all(end is None or end.reason is not None for end in ends):
        return _all_ended(runtime, known, ends)
    over = ChildEnd(reason="CANCELLED", error="another one was first")
    losers = [UUID(id) for id, end in zip(known.messages, ends, strict=True) if end is None]
    if losers:
        cancel_messages(runtime.store, losers, "another child of the run was first")
    return [over if end is None else end for end in ends]


def cancel_messages(store: Store, messages: Sequence[UUID], why: str) -> None:
    """Cancels children of a run that have not ended. Repeating it changes nothing."""
    for id in messages:
        operations.cancel(store, Filter(message_id=id), operations.sign("workflow", why))


async def _ends(flow: Flow, name: str, calls: Sequence[Call[Any]], complete: Complete) -> list[ChildEnd]:
    """How the children ended: stored, or once enough of them have (R11)."""
    run, arguments = flow.run, encode([[call.job, call.payload.text] for call in calls])
    asked = run.ask(short_name(f"{name} {', '.join(sorted({call.job for call in calls}))}"), arguments)
    row = asked.row
    if row is None:
        await run.refuse_changed(asked, arguments)
        row, made, batch = _begun(flow, name, run.new_row(asked, "children", None), calls)
        begun = row
        async with run.working(asked):
            await run.write_by(lambda: run.runtime.store.runs.publish(run.claim, begun, made, batch))
            run.stored(begun)
        run.runtime.outbox.wake()
    while not row.is_stored:
        async with run.working(asked):
            ends = await run.call_store(partial(_read_ends, run.runtime, run.claim, row, complete))
            if ends is not None:
                text = run.runtime.seal_text(run.claim, msgspec.json.encode(ends).decode())
                row = await run.write(msgspec.structs.replace(row, state="done", result=text, awaits=None))
                break
        await run.wait(math.inf)
    return msgspec.json.decode(run.runtime.open_text(run.claim, row.result or "[]"), type=list[ChildEnd])


def _begun(flow: Flow, name: str, row: StepRow, calls: Sequence[Call[Any]]) -> tuple[StepRow, list[Draft], NewBatch]:
    """The open row of the children, their drafts and their batch: published and written in one commit."""
    batch = NewBatch(id=new_id(), total=len(calls), on="finished")
    headers = {CHILD: f"{name} {flow.claim.message_id}"}
    made = [add_to_batch(with_headers(draft, headers), batch.id) for draft in drafts(calls)]
    known = ChildBatch(str(batch.id), tuple(str(draft.id) for draft in made), tuple(call.job for call in calls))
    awaits = awaited_race(known.batch) if name == "race" else known.batch
    return msgspec.structs.replace(row, awaits=awaits, arguments=msgspec.json.encode(known).decode()), made, batch


def _read_ends(runtime: FlowRuntime, claim: Claimed, row: StepRow, complete: Complete) -> list[ChildEnd] | None:
    """How the children ended; None: not enough of them have. Blocks.

    What the step says of them is read last: it is written before the history of a child is removed.
    """
    known = msgspec.json.decode(row.arguments or "", type=ChildBatch)
    status = runtime.store.batch(UUID(known.batch))
    if status is not None and status.open == status.total:
        return None
    standings = [
        runtime.store.deliveries.standing(UUID(id), (job,)) for id, job in zip(known.messages, known.jobs, strict=True)
    ]
    kept = runtime.store.runs.children(claim.message_seq, row.key).succeeded or (None,) * len(standings)
    children = zip(known.messages, standings, kept, strict=True)
    return complete(runtime, known, [_end(runtime, id, standing, success) for id, standing, success in children])


def _end(runtime: FlowRuntime, id: str, standing: Standing | None, success: ChildSuccess | None) -> ChildEnd | None:
    if success is None and standing is not None and standing.status == Status.SUCCEEDED:
        success = ChildSuccess(standing.destination, standing.result)
    if success is not None:
        return ChildEnd(result=success.result and runtime.opener.result(success.result, id, success.destination))
    if standing is None:
        return ChildEnd(reason="PURGED", error="it was removed, or its retention has passed")
    if standing.status == Status.ABORTED:
        return ChildEnd(reason=standing.reason or "UNKNOWN", error=standing.error)
    return None


def _result_of(flow: Flow, call: Call[Any], end: ChildEnd) -> Any:
    if end.reason is not None:
        return JobAborted(f"{call.job} was aborted: {end.reason}: {end.error or end.reason}", reason=end.reason)
    decode = flow.run.runtime.result_decoder(call)
    return None if end.result is None else flow.run.read(call.job, end.result, decode)
