"""Runs of workflows: their steps, the signals that are sent to them, and the calls that wake them.

A worker writes a step only while it owns the run: every write locks the delivery by (id, epoch, worker) until its
commit (R3). Senders of signals, and ends of batches, only append calls; a claim heeds them (R2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch
from todoku.core.errors import DatabaseBusy, NotThere
from todoku.core.flow import StepRow
from todoku.core.message import Claimed, Draft
from todoku.store import gates
from todoku.store.batches import begin
from todoku.store.database import Database, HandlerTransaction, Tx, run_steps
from todoku.store.endings import Endings
from todoku.store.publish import Publishing
from todoku.store.sql import Steps

T = TypeVar("T")

_CALLS: Final = 1000
"""Calls that one claim heeds."""


class RunLost(Exception):
    """The worker does not own the run any more: nothing was written."""


class StandingRun(msgspec.Struct, frozen=True):
    """Where a run stands. `delivery`: None if it has succeeded. `undoing`: its steps are being undone, or were."""

    delivery: int | None
    status: str | None
    reason: str | None
    epoch: int | None
    message_seq: int
    undoing: bool


class RunStore:
    """The runs of one database, as workers run them."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def steps(self, message_seq: int) -> list[StepRow]:
        """The steps of a run, in the order in which they were begun."""
        return self._database.read_alone(lambda tx: read_steps(tx, message_seq))

    def standing(self, message_id: UUID) -> StandingRun | None:
        """Where a run stands. None: there is no such message."""
        return self._database.read(lambda tx: read_standing(tx, message_id))

    # ------------------------------------------------------------------------------------------- as its worker

    def store_steps(self, steps: Sequence[tuple[Claimed, StepRow]]) -> set[int]:
        """Writes steps of one worker's runs in one commit. Returns the deliveries that the worker no longer owns.

        Repeating it after a lost reply is harmless: a stored result is not overwritten.
        """
        return self._database.write_alone("step", lambda tx: _store(tx, steps))

    def take_signal(self, claim: Claimed, name: str, taken: Callable[[str], StepRow], wait: StepRow) -> StepRow:
        """Delivers the oldest signal of this name to the wait, once, or writes that the run waits for one.

        `taken`: the row of the wait for the payload it gets. Returns the row that was written. Raises RunLost.
        """

        def work(tx: Tx) -> StepRow:
            for state, result in tx.rows("stored_step", message_seq=claim.message_seq, step_key=wait.key):
                if state == "done":  # a commit whose reply was lost: another signal is not for this wait
                    return taken(result)
            rows = tx.rows("take_signal", message_seq=claim.message_seq, name=name, step_key=wait.key)
            return _store_or_raise(tx, claim, taken(rows[0][0]) if rows else wait)

        return self._database.write("step", work)

    def publish(self, claim: Claimed, row: StepRow, drafts: Sequence[Draft], batch: NewBatch | None = None) -> None:
        """Publishes messages, and writes the step that does, in one commit (R10, R11). Raises RunLost.

        Repeating it after a lost reply publishes nothing more.
        """

        def work(tx: Tx) -> None:
            if not tx.rows("stored_step", message_seq=claim.message_seq, step_key=row.key):
                run_steps(tx, begin(self._endings.publishing(), [Following(tuple(drafts), batch)]))
                _store_or_raise(tx, claim, row)

        self._database.write("step", work)

    def transact(self, claim: Claimed, work: Callable[[Any], StepRow], *, limit: float) -> StepRow:
        """Calls `work` with an open transaction of its own; what it writes and its step commit together (I6).

        Raises RunLost, with everything rolled back, and whatever `work` raises. The database ends a transaction that
        takes longer than `limit` seconds.
        """
        with self._database.open_transaction(limit) as opened:
            row = work(opened.connection)
            return _commit(opened, claim, row)

    def heed_calls(self) -> int:
        """Wakes the runs for which something has happened that they wait for. Returns how many.

        Calls of runs in flight stay until those have parked or ended.
        """
        database = self._database
        if not database.read_alone(lambda tx: tx.rows("has_run_calls"))[0][0]:
            return 0

        def work(tx: Tx) -> int:
            woken = tx.rows("heed_run_calls", most=_CALLS)
            gates.refresh(tx, (gate for _, gate in woken))
            return len(woken)

        try:
            return database.write("heed", work)
        except DatabaseBusy:  # another worker heeds them
            return 0

    # ------------------------------------------------------------------------------------------- as the undo

    def mark_undone(self, message_seq: int, key: str) -> None:
        """Records that a step was undone. The caller owns the delivery that undoes the run."""
        self._database.write("step", lambda tx: tx.rows("mark_undone", message_seq=message_seq, step_key=key))


def _commit(opened: HandlerTransaction, claim: Claimed, row: StepRow) -> StepRow:
    opened.check()
    _store_or_raise(opened.tx, claim, row)
    opened.commit()
    return row


def read_steps(tx: Tx, message_seq: int) -> list[StepRow]:
    """As `RunStore.steps`, in an open transaction."""
    return [StepRow(*row) for row in tx.rows("steps", message_seq=message_seq)]


def read_standing(tx: Tx, message_id: UUID) -> StandingRun | None:
    """As `RunStore.standing`, in an open transaction."""
    for delivery, status, reason, epoch, message_seq, undoing in tx.rows("run_of", message_id=str(message_id)):
        return StandingRun(delivery, status, reason, epoch, message_seq, bool(undoing))
    return None


def _store(tx: Tx, steps: Sequence[tuple[Claimed, StepRow]]) -> set[int]:
    rows = [_document(claim, row) for claim, row in sorted(steps, key=lambda pair: pair[0].id)]
    owned = {delivery for delivery, _ in tx.rows("store_steps", worker=steps[0][0].worker, rows=rows)}
    return {claim.id for claim, _ in steps} - owned


def _store_or_raise(tx: Tx, claim: Claimed, row: StepRow) -> StepRow:
    if _store(tx, [(claim, row)]):
        raise RunLost
    return row


def _document(claim: Claimed, row: StepRow) -> dict[str, object]:
    return {
        "delivery": claim.id, "epoch": claim.epoch, "message_seq": claim.message_seq, "step_key": row.key,
        "number": row.number, "name": row.name, "kind": row.kind, "state": row.state, "arguments": row.arguments,
        "result": row.result, "error": row.error, "undo": row.undo, "attempts": row.attempts, "replay": row.replay,
        "awaits": row.awaits, "wait": row.wait, "took": row.took,
    }  # fmt: skip


def signal(to: Publishing, message_id: UUID, name: str, payload: str) -> Steps[None]:
    """Sends a value to a run, in the caller's transaction or in one of its own. It touches nothing but its own rows.

    NotThere: there is no such run, or it has ended.
    """
    notices = {"notify": to.notify} if to.dialect == "postgresql" else {}
    rows = yield to.one("signal", message_id=str(message_id), name=name, payload=payload)
    for (message_seq,) in rows:
        yield to.one("signal_call", message_seq=cast("int", message_seq), name=name, **notices)
    if not rows:
        raise NotThere(
            f"no run {message_id} waits or runs", hint="it has ended, was rolled back, or its retention has passed"
        )
