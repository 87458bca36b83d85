"""Acts on runs of workflows: rewind, undo, signal. Each is one transaction with its audit rows.

Only `todoku.engine.flows.operations` calls these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.core.flow import ChildBatch, StepRow, is_own_row, is_restarted
from todoku.store import undos
from todoku.store.acts import UNDONE, Picked, cancel, pick, replay
from todoku.store.audit import Signed
from todoku.store.database import Database, Tx, run_steps
from todoku.store.deliveries import Filter
from todoku.store.ended_delivery import load_ended
from todoku.store.endings import Endings
from todoku.store.runs import Seal, StandingRun, read_standing, read_steps, signal


class RunActs:
    """The acts on the runs of one database."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def rewind(
        self,
        run: UUID,
        choose: Callable[[Sequence[StepRow]], Sequence[StepRow]],
        signed: Signed,
        *,
        to: str,
        dry_run: bool = False,
    ) -> list[StepRow]:
        """Takes back the steps that `choose` returns, and replays the run, which must be a dead letter (R12).

        They stay as `rewound` for the audit; signals that they got are there again; children that have not ended are
        cancelled. Returns the steps. InvalidAct: the run is no dead letter, its undo has begun (R5), or it
        has restarted (R14).
        """

        def work(tx: Tx) -> list[StepRow]:
            standing, delivery = _lock_dead(tx, run)
            rows = list(choose(read_steps(tx, standing.message_seq)))
            if not dry_run:
                self._take_back(tx, standing, delivery, rows, signed)
                if not replay(tx, [delivery]):
                    raise _busy(run)
                targets = [f"delivery:{delivery.id}"]
                for action in (f"rewind to {to}", "replay"):
                    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=targets)
            return [row for row in rows if not is_own_row(row)]

        return self._endings.write("rewind", work)

    def _take_back(
        self, tx: Tx, standing: StandingRun, delivery: Picked, rows: Sequence[StepRow], signed: Signed
    ) -> None:
        keys = [row.key for row in rows]
        (ended,) = load_ended(tx, [delivery.id])
        tx.rows("rewind_steps", message_seq=standing.message_seq, step_keys=keys, replay=str(ended.replay_count))
        tx.rows("untake_signals", message_seq=standing.message_seq, step_keys=keys)
        for row in rows:
            if row.kind == "children" and row.state == "open":
                for child in msgspec.json.decode(row.arguments or "", type=ChildBatch).messages:
                    self._cancel_child(tx, UUID(child), signed)

    def _cancel_child(self, tx: Tx, message: UUID, signed: Signed) -> None:
        rows = pick(tx, Filter(message_id=message), ("pending", "failed", "sending"), 1, 0)
        if rows:
            why = f"its run was rewound: {signed.why}"
            changed = cancel(tx, rows, why, endings=self._endings)
            targets = [f"delivery:{id}" for id in changed]
            tx.rows("audit", by=signed.by, why=why, action="cancel", targets=targets)

    def undo(self, run: UUID, signed: Signed, *, dry_run: bool = False) -> list[StepRow]:
        """Publishes the undo of a dead letter that was not undone by itself (R5). Returns the steps that it undoes.

        InvalidAct: the run is no dead letter, its undo has begun, it has restarted, or it has nothing to undo.
        """

        def work(tx: Tx) -> list[StepRow]:
            standing, delivery = _lock_dead(tx, run)
            steps = [row for row in read_steps(tx, standing.message_seq) if undos.is_undoable(row)]
            if not steps:
                hint = "only steps with undo= are: ctx.step(charge, order, undo=refund)"
                raise InvalidAct(f"the run {run} has nothing to undo", hint=hint)
            if not dry_run:
                undos.start(tx, self._endings.publishing(), load_ended(tx, [delivery.id]))
                targets = [f"delivery:{delivery.id}"]
                tx.rows("audit", by=signed.by, why=signed.why, action="undo", targets=targets)
            return steps

        return self._endings.write("undo", work)

    def signal(self, run: UUID, name: str, payload: str, seal: Seal, signed: Signed) -> None:
        """Sends a value to a run, as its program does. NotThere: there is no such run, or it has ended."""

        def work(tx: Tx) -> None:
            run_steps(tx, signal(self._endings.publishing(), run, name, payload, seal))
            if (standing := read_standing(tx, run)) is not None:
                targets = [f"delivery:{standing.delivery}"]
                tx.rows("audit", by=signed.by, why=signed.why, action=f"signal {name}", targets=targets)

        self._database.write("signal", work)


def _lock_dead(tx: Tx, run: UUID) -> tuple[StandingRun, Picked]:
    """Locks a run that is a dead letter, is not undone, and has not restarted: what is read now does not change."""
    standing = read_standing(tx, run)
    if standing is None:
        raise NotThere(f"there is no run {run}", hint="`todoku list` shows the newest; old ones are pruned")
    if standing.delivery is None:
        raise InvalidAct(f"the run {run} has succeeded", hint="it cannot be taken back: start a new run")
    rows = pick(tx, Filter(ids=(standing.delivery,)), ("aborted",), 1, 0)
    if not rows:
        raise _busy(run)
    if rows[0].status != "aborted":
        raise InvalidAct(
            f"the run {run} is {rows[0].status}, and no dead letter",
            hint=f"wait for its end, or cancel it: todoku cancel {standing.delivery}",
        )
    if tx.rows("undoing", ids=[standing.delivery]):
        raise InvalidAct(f"the run {run} cannot go on: {UNDONE}", hint="start a new run")
    if is_restarted(read_steps(tx, standing.message_seq)):
        raise InvalidAct(
            f"the run {run} has restarted: another run goes on with what it did",
            hint=f"todoku replay {standing.delivery} ends it",
        )
    return standing, rows[0]


def _busy(run: UUID) -> InvalidAct:
    return InvalidAct(f"the run {run} is being changed by another connection", hint="try again")
