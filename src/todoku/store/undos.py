"""Undoing runs: the message that undoes the steps of a run is published in the transaction that gives the run up."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec

from todoku.core.flow import RUN, UNDO_TOPIC, StepRow, undone_by_itself
from todoku.core.identity import uuid7
from todoku.core.message import Draft, Leg
from todoku.core.status import Status
from todoku.store.database import Tx, run_steps
from todoku.store.ended_delivery import EndedDelivery, trace_of
from todoku.store.publish import Publishing, publish

ATTEMPTS = 20
"""Attempts of an undo, each of which may be followed by a back-off: what was paid must be paid back."""


class GivenUp(msgspec.Struct, frozen=True):
    """The payload of the message that undoes a run."""

    run: str
    message_seq: int
    workflow: str
    reason: str | None


def undo_destination(workflow: str) -> str:
    """Returns the destination that undoes the runs of a workflow. Its workers serve it."""
    return f"{workflow}.undo"


def is_undoable(row: StepRow) -> bool:
    """Whether the undo of its run has something to do about a step: as the query `undoable`."""
    if row.kind == "children":
        return row.state == "open"
    return row.kind == "step" and row.undo is not None and row.state in ("open", "done", "failed", "fatal")


def begin(tx: Tx, to: Publishing, ended: Sequence[EndedDelivery]) -> None:
    """Publishes the undo of each run that ended as a dead letter, has steps to undo, and is to be undone by itself."""
    given_up = [each for each in ended if _is_given_up(each)]
    if given_up:
        start(tx, to, given_up)


def start(tx: Tx, to: Publishing, runs: Sequence[EndedDelivery]) -> list[str]:
    """Publishes the undo of each of these runs that has something to undo, once. Returns their message ids."""
    by_id = {each.message_id: each for each in runs}
    started: list[tuple[EndedDelivery, int]] = []
    for message_id, message_seq in tx.rows("undoable", message_ids=sorted(by_id)):
        run = by_id[str(message_id)]
        if tx.rows("mark_undo", message_seq=message_seq, arguments=run.reason):
            started.append((run, message_seq))
    if started:
        run_steps(tx, publish(to, [_draft(run, message_seq) for run, message_seq in started]))
    return [run.message_id for run, _ in started]


def _is_given_up(each: EndedDelivery) -> bool:
    if each.status is not Status.ABORTED or each.headers is None or RUN not in each.headers:
        return False
    when = msgspec.json.decode(each.headers, type=dict[str, str]).get(RUN)
    return when is not None and undone_by_itself(each.reason, exhausted=each.exhausted, always=when == "always")


def _draft(run: EndedDelivery, message_seq: int) -> Draft:
    body = GivenUp(run.message_id, message_seq, run.destination, run.reason)
    leg = Leg(destination=undo_destination(run.destination), queue=run.queue, max_attempts=ATTEMPTS)
    return Draft(
        id=uuid7(time.time_ns() // 1_000_000, os.urandom(10)), topic=UNDO_TOPIC, type=UNDO_TOPIC, key=run.key,
        payload=msgspec.json.encode(body).decode(), legs=(leg,),
        headers=msgspec.json.encode(trace).decode() if (trace := trace_of(run.headers)) else None,
    )  # fmt: skip
