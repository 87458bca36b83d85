"""What a person does with runs of workflows: the one module behind the command line, the HTTP API and the App.

Each act is signed and leaves an audit row. What is shown is masked, as messages are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.core.flow import (
    RUN,
    UNDO_TOPIC,
    ChildBatch,
    ChildEnd,
    StepKind,
    StepRow,
    changed_steps,
    is_own_row,
    steps_from,
)
from todoku.core.sealed import parse_sealed_result
from todoku.engine.deliveries import Id, parse_id
from todoku.engine.diagnostics.masked_json import masked
from todoku.engine.flows.step_checks import check_signal_name
from todoku.engine.flows.step_function import bounded
from todoku.engine.outbox import Outbox
from todoku.engine.publish import encode
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.messages import Story
from todoku.store.runs import Seal
from todoku.store.store import Store

ShownState = Literal["done", "failed", "undone", "rewound", "running", "sleeping", "waiting", "retrying", "open"]
"""What a person sees of a step: its stored state, or what an open one does."""

Undoing = Literal["begun", "done"]

_LISTED: Final = 5
"""Runs that an error lists, at most."""


class ShownChildren(msgspec.Struct, frozen=True):
    """The children of a step: how many have ended, of how many, and their messages."""

    ended: int
    total: int
    messages: tuple[UUID, ...]


class ShownStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run. `until`: when its sleep, its wait or the pause before its next attempt is over.

    `seconds`: how long it took, or has taken so far. `signal`: the name of the signal that it waits for.
    """

    number: int
    key: str
    name: str
    kind: StepKind
    state: ShownState
    started: datetime
    ended: datetime | None
    seconds: float
    attempts: int
    error: str | None
    arguments: Any
    result: Any
    until: datetime | None = None
    signal: str | None = None
    children: ShownChildren | None = None
    undoable: bool = False


class ShownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its steps, oldest first. `undo`: whether its steps are being undone, or were; None: neither."""

    id: UUID
    delivery: int
    workflow: str
    status: str
    reason: str | None
    error: str | None
    attempts: int
    replays: int
    started: datetime
    now: datetime
    next_run: datetime | None
    undo: Undoing | None
    steps: tuple[ShownStep, ...]


class RunAct(msgspec.Struct, frozen=True):
    """What an act on a run came to: the run, and the steps that it concerns."""

    run: UUID
    steps: tuple[str, ...]
    dry_run: bool = False


def show(store: Store, run: Id, *, mask_fields: Iterable[str] = ()) -> ShownRun:
    """Returns a run with its steps, their arguments and results masked. NotThere: there is no such run. Blocks."""
    story = run_of(store, run)
    now, rows = store.ping(), store.runs.steps(story.message.seq)
    delivery = story.deliveries[0]
    waits = delivery.status in ("pending", "failed") and delivery.next_run_at.timestamp() > now
    undone = next((row for row in rows if row.kind == "undo"), None)
    fields = tuple(mask_fields)
    return ShownRun(
        id=story.message.id, delivery=delivery.id, workflow=delivery.destination, status=str(delivery.status),
        reason=delivery.reason, error=delivery.error, attempts=delivery.attempts, replays=delivery.replay_count,
        started=story.message.created_at, now=moment(now), next_run=delivery.next_run_at if waits else None,
        undo=None if undone is None else "begun" if undone.state == "open" else "done",
        steps=tuple(
            _shown(store, row, now, fields, running=delivery.status == "sending")
            for row in rows
            if not is_own_row(row)
        ),
    )  # fmt: skip


def rewind(
    store: Store, run: Id, signed: Signed, *, to: str | None = None, accept: bool = False, dry_run: bool = False
) -> RunAct:
    """Takes back a step of a dead letter and all later ones, and replays it (R12). Blocks.

    `to`: the step by its name, number or key. `accept`: instead, only the results that a run with STEP_CHANGED would
    leave over, so that it goes on with the new arguments (R1).
    """
    if (to is None) is not accept:
        raise InvalidAct("say either a step or accept", hint="--to STEP, or --accept for a run with STEP_CHANGED")
    id = run_of(store, run).message.id

    def choose(rows: Sequence[StepRow]) -> list[StepRow]:
        return changed_steps(rows) if to is None else steps_from(rows, to)

    rows = store.run_acts.rewind(id, choose, signed, to=to or "accept what has changed", dry_run=dry_run)
    return RunAct(id, tuple(row.name for row in rows), dry_run)


def undo(store: Store, run: Id, signed: Signed, *, dry_run: bool = False) -> RunAct:
    """Starts the undo of a dead letter that was not undone by itself (R5): the last step first. Blocks."""
    id = run_of(store, run).message.id
    rows = store.run_acts.undo(id, signed, dry_run=dry_run)
    return RunAct(id, tuple(row.name for row in reversed(rows)), dry_run)


def signal(outbox: Outbox, run: Id, name: str, payload: object, signed: Signed, *, dry_run: bool = False) -> RunAct:
    """Sends a value to a run that has not ended. `steps`: the waits that are open for it. Blocks.

    CannotOpen: the run is encrypted, and its key is not there.
    """
    store = outbox.store
    story, text = run_of(store, run), signal_text(name, payload)
    if story.deliveries[0].status in ("succeeded", "aborted"):
        raise InvalidAct(f"the run {story.message.id} has ended", hint="a signal is for a run that waits or runs")
    rows = store.runs.steps(story.message.seq)
    waits = tuple(row.name for row in rows if row.kind == "wait" and row.state == "open" and row.awaits == name)
    if not dry_run:
        store.run_acts.signal(story.message.id, name, text, signal_sealer(outbox, name), signed)
    return RunAct(story.message.id, waits, dry_run)


def signal_text(name: str, payload: object) -> str:
    """Returns the payload of a signal as JSON. InvalidMessage: the name or the payload cannot be one."""
    check_signal_name(name)
    return bounded(encode(payload), f"the signal {name}")


def signal_sealer(outbox: Outbox, name: str) -> Seal:
    """Returns how the value of a signal of this name is sealed for an encrypted run (R13)."""
    return lambda run, text: outbox.opener.seal_signal(run, name, text)


# ------------------------------------------------------------------------------------------------- reading


def find_run(store: Store, idempotency_key: str) -> UUID:
    """Returns the run that was started with this idempotency key: one that has not ended, else the newest. Blocks.

    NotThere: there is none. InvalidAct: workflows of several names have one.
    """
    found = store.runs.keyed(idempotency_key)
    runs = [each for each in found if not each.ended] or found
    if not runs:
        hint = "the key with which it was started: fulfil.using(idempotency_key=…); old runs are pruned"
        raise NotThere(f"there is no run with the idempotency key {idempotency_key!r}", hint=hint)
    if len({each.workflow for each in runs}) > 1:
        listed = ", ".join(f"{each.workflow} {each.id}" for each in runs[:_LISTED])
        hint = f"give one by its id: {listed}"
        raise InvalidAct(f"several runs have the idempotency key {idempotency_key!r}", hint=hint)
    return runs[0].id


def is_run(story: Story) -> bool:
    """Whether a message is a run of a workflow, or the undo of one."""
    message = story.message
    return message.topic == UNDO_TOPIC or (message.headers is not None and f'"{RUN}":' in message.headers)


def run_of(store: Store, run: Id) -> Story:
    """The message of a run, by its id or by the number of its delivery."""
    id = parse_id(run)
    if isinstance(id, int):
        found = store.deliveries.get(id)
        message = None if found is None else found.message_id
    else:
        message = id
    story = None if message is None else store.messages.story(message)
    if story is None or not story.deliveries:
        raise NotThere(f"there is no run {run}", hint="`todoku list` shows the newest; old ones are pruned")
    if not is_run(story):
        raise InvalidAct(f"{run} is no run of a workflow", hint=f"todoku show {run}")
    return story


def _shown(store: Store, row: StepRow, now: float, fields: Sequence[str], *, running: bool) -> ShownStep:
    until = None if row.wait is None else now + row.wait
    slept = row.kind == "sleep" and row.state == "open" and until is not None and until <= now
    ended = until if slept else row.ended
    known = None if row.kind != "children" else msgspec.json.decode(row.arguments or "", type=ChildBatch)
    return ShownStep(
        number=row.number, key=row.key, name=row.name, kind=row.kind,
        state="done" if slept else _state(row, running=running), started=moment(row.started),
        ended=None if ended is None else moment(ended),
        seconds=max((now if ended is None else ended) - row.started, 0.0), attempts=row.attempts, error=row.error,
        arguments=list(known.jobs) if known is not None else masked(row.arguments, fields),
        result=_ends(row.result, fields) if known is not None else masked(row.result, fields),
        until=moment(until) if until is not None and row.state == "open" and not slept else None,
        signal=row.awaits if row.kind == "wait" and row.state == "open" else None,
        children=None if known is None else _children(store, row, known), undoable=row.undo is not None,
    )  # fmt: skip


def _state(row: StepRow, *, running: bool) -> ShownState:
    match row.state:
        case "open":
            waits: dict[StepKind, ShownState] = {"sleep": "sleeping", "wait": "waiting", "children": "waiting"}
            if row.kind in waits:
                return waits[row.kind]
            return "retrying" if row.wait is not None else "running" if running else "open"
        case "fatal":
            return "failed"
        case state:
            return state


def _children(store: Store, row: StepRow, known: ChildBatch) -> ShownChildren:
    batch = store.batch(UUID(known.batch)) if row.state == "open" else None
    total = len(known.messages)
    return ShownChildren(total if batch is None else total - batch.open, total, tuple(map(UUID, known.messages)))


def _ends(text: str | None, fields: Sequence[str]) -> object:
    """How children ended, with the results masked: each is JSON of its own."""
    if text is None or parse_sealed_result(text) is not None:
        return masked(text, fields)
    ends = msgspec.json.decode(text, type=list[ChildEnd])
    return [masked(end.result, fields) if end.reason is None else f"{end.reason}: {end.error}" for end in ends]
