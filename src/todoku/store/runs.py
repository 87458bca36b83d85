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
from todoku.core.flow import RUN, ChildBatch, KeyedRun, StepRow
from todoku.core.identity import key_hash, publish_scope
from todoku.core.message import Claimed, Draft
from todoku.core.sealed import SEALED, WrappedKey
from todoku.store import gates, lanes
from todoku.store.batches import begin
from todoku.store.columns import uuid
from todoku.store.database import Database, HandlerTransaction, Tx, run_steps
from todoku.store.endings import Endings
from todoku.store.publish import Publishing
from todoku.store.publish_parameters import json_text
from todoku.store.sql import Row, Statement, Steps

T = TypeVar("T")

_CALLS: Final = 1000
"""Calls that one claim heeds."""

_KEYED: Final = 100
"""Runs of one idempotency key that are looked at: the newest."""


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


class FoundRun(msgspec.Struct, frozen=True):
    """A run that was found by its idempotency key. `workflow`: the name that the workflow had then."""

    id: UUID
    workflow: str
    ended: bool


class RunStore:
    """The runs of one database, as workers run them."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def steps(self, message_seq: int) -> list[StepRow]:
        """The steps of a run, in the order in which they were begun."""
        return self._database.read_alone(lambda tx: read_steps(tx, message_seq))

    def children(self, message_seq: int, step_key: str) -> ChildBatch:
        """The children of a step that waits for them, with what is kept of those whose history may be gone."""
        ((text,),) = self._database.read(lambda tx: tx.rows("children", message_seq=message_seq, step_key=step_key))
        return msgspec.json.decode(text, type=ChildBatch)

    def keyed(self, idempotency_key: str) -> list[FoundRun]:
        """The newest runs that were started with this idempotency key, of any workflow."""
        hashed, mark = key_hash(idempotency_key), f'%"{RUN}":%'
        rows = self._database.read(lambda tx: tx.rows("keyed_runs", key_hash=hashed, mark=mark, most=_KEYED))
        return [FoundRun(uuid(id), topic, bool(ended)) for id, topic, ended in rows]

    def standing(self, message_id: UUID) -> StandingRun | None:
        """Where a run stands. None: there is no such message."""
        return self._database.read(lambda tx: read_standing(tx, message_id))

    # ------------------------------------------------------------------------------------------- as its worker

    def store_steps(self, steps: Sequence[tuple[Claimed, StepRow]]) -> set[int]:
        """Writes steps of one worker's runs in one commit. Returns the deliveries that the worker no longer owns.

        Repeating it after a lost reply is harmless: a stored result is not overwritten.
        """
        return self._database.write_alone("step", lambda tx: _store(tx, steps))

    def take_signal(self, claim: Claimed, name: str, keep: Callable[[str], str], wait: StepRow) -> StepRow:
        """Delivers the oldest signal of this name to the wait, once, or writes that the run waits for one.

        `keep`: the value of a signal as the result of a step is stored. Returns the row that was written. RunLost.
        """

        def got(result: str) -> StepRow:
            return msgspec.structs.replace(wait, state="done", result=result, awaits=None, wait=None)

        def work(tx: Tx) -> StepRow:
            for state, result in tx.rows("stored_step", message_seq=claim.message_seq, step_key=wait.key):
                if state == "done":  # a commit whose reply was lost: another signal is not for this wait
                    return got(result)
            rows = tx.rows("take_signal", message_seq=claim.message_seq, name=name, step_key=wait.key)
            return _store_or_raise(tx, claim, got(keep(rows[0][0])) if rows else wait)

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
            lanes.refresh(tx, (lane for lane, _ in woken))  # a lane is due when its first run is (R7)
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


# ------------------------------------------------------------------------------------------------ signals


class SealedRun(msgspec.Struct, frozen=True):
    """An encrypted run: its message, and every stored copy of its data key. No copy: the key was shredded."""

    message_id: str
    key_id: UUID
    keys: tuple[WrappedKey, ...]


Seal = Callable[[SealedRun, str], str]
"""Seals a value for an encrypted run. Whatever it raises, nothing is sent."""


def signal(to: Publishing, run: UUID | KeyedRun, name: str, payload: str, seal: Seal) -> Steps[None]:
    """Sends a value to a run, in the caller's transaction or in one of its own. It touches nothing but its own rows.

    NotThere: there is no such run, it has ended, or several have its key. Then nothing is stored, also if the caller
    commits.
    """
    called = yield _call(to, run, name)
    try:
        message_seq, text = yield from _sealed(to, run, called, payload, seal)
    except Exception:
        for id, *_ in called:
            yield to.one("take_back_call", id=cast("int", id))
        raise
    notices = {"notify": to.notify} if to.dialect == "postgresql" else {}
    yield to.one("signal", message_seq=message_seq, name=name, payload=text, **notices)


def _call(to: Publishing, run: UUID | KeyedRun, name: str) -> Statement:
    if isinstance(run, UUID):
        return to.one("call_run", message_id=str(run), name=name, sealed=SEALED)
    scopes = json_text([publish_scope(each) for each in run.names])
    return to.one("call_keyed_run", key_hash=key_hash(run.idempotency_key), scopes=scopes, name=name, sealed=SEALED)


def _sealed(
    to: Publishing, run: UUID | KeyedRun, called: list[Row], payload: str, seal: Seal
) -> Steps[tuple[int, str]]:  # fmt: skip
    """Returns the one run that was called, and the value as it is stored with it."""
    if len(called) != 1:
        raise _not_one(run, len(called))
    _, message_seq, sealed = cast("tuple[int, int, str | None]", called[0])
    if sealed is not None:
        payload = seal((yield from _sealed_run(to, sealed)), payload)
    return message_seq, payload


def _not_one(run: UUID | KeyedRun, found: int) -> NotThere:
    if isinstance(run, UUID):
        hint = "it has ended, was rolled back, or its retention has passed"
        return NotThere(f"no run {run} waits or runs", hint=hint)
    what = f"of {run.names[0]} with the idempotency key {run.idempotency_key!r}"
    if found:
        return NotThere(
            f"{found} runs {what} wait or run", hint="signal one of them, by its id: `todoku flow show --key`"
        )
    hint = "it has ended (or restarted, as a run with another key), was rolled back, or was started without this key"
    return NotThere(f"no run {what} waits or runs", hint=hint)


def _sealed_run(to: Publishing, text: str) -> Steps[SealedRun]:
    message_id, hex = msgspec.json.decode(text, type=tuple[str, str])
    key_id = UUID(hex)
    rows = cast("list[tuple[str, str, str]]", (yield to.one("run_data_keys", id=str(key_id))))
    keys = tuple(WrappedKey(key_id, day, master, bytes.fromhex(wrapped)) for day, master, wrapped in rows)
    return SealedRun(message_id, key_id, keys)
