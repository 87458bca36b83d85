"""The protocol of DESIGN §4 as an explicit-state model: every step that anyone may take next, in reading order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.model import Model
from tests.model.state import State, Step
from tests.model.steps import claim, drain, execute, lease, operate, publish, reclaim, settle

STEPS: tuple[Callable[[Model, State], Iterator[Step]], ...] = (
    publish.publish,
    publish.publish_again,
    publish.fan_out_late,
    lease.register,
    lease.lapse,
    lease.finish_renewal,
    lease.renew_too_late,
    lease.compare,
    lease.crash,
    claim.ask,
    claim.commit,
    claim.reply,
    claim.lose_connection,
    claim.finish_adrift,
    claim.forget,
    execute.start,
    execute.finish,
    execute.kill,
    execute.time_out,
    execute.obey_cancel,
    execute.finish_stray,
    settle.release,
    settle.settle,
    settle.settle_again,
    settle.write_ledger_late,
    reclaim.reclaim,
    reclaim.reclaim_overdue,
    drain.drain,
    drain.last_act,
    drain.end_last_act,
    operate.cancel,
    operate.replay,
    operate.look_for_duplicate,
    operate.reopen,
    publish.prune_message,
    publish.prune_entry,
)


def successors(model: Model, state: State) -> Iterator[Step]:
    """Everything that may happen next."""
    for step in STEPS:
        yield from step(model, state)
