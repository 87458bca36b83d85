"""What a person, or a publisher who comes again, does to a delivery: cancel, replay, reopen."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    ABORTED,
    ACCEPTED,
    CANCELLED,
    DUE,
    FAILED,
    NOBODY,
    PENDING,
    SENDING,
    Event,
    State,
    Step,
)
from tests.model.steps.rows import abort, with_entry, with_row


def cancel(model: Model, state: State) -> Iterator[Step]:
    """Cancel (DESIGN §2): a waiting delivery is aborted; for a running one a flag that its owner obeys."""
    if not state.budget.cancels:
        return
    fixes = model.fixes
    spent = state._replace(budget=state.budget._replace(cancels=state.budget.cancels - 1))
    for delivery, row in enumerate(state.rows):
        if row.status in DUE or (row.status == SENDING and not fixes.cancel_asks_owner):
            asked = with_row(spent, delivery, row._replace(asked=True))
            raises, reads = fixes.cancel_raises_epoch, fixes.every_abort_reads_ledger
            done = abort(model, asked, delivery, CANCELLED, raises=raises, reads_ledger=reads)
            yield Event("cancel", deliveries=(delivery,)), done
        elif row.status == SENDING and not row.cancel_requested:
            epoch = row.epoch if fixes.cancel_flag_keeps_epoch else row.epoch + 1
            flagged = row._replace(cancel_requested=True, asked=True, epoch=epoch)
            yield Event("ask to cancel", deliveries=(delivery,)), with_row(spent, delivery, flagged)


def replay(model: Model, state: State) -> Iterator[Step]:
    """Replay (DESIGN §1, I4, I9): aborted → pending, attempts at 0, with who, when and why."""
    if not state.budget.replays:
        return
    for delivery, row in enumerate(state.rows):
        if row.status == ABORTED and model.destination[delivery]:
            spent = state._replace(budget=state.budget._replace(replays=state.budget.replays - 1))
            yield Event("replay", deliveries=(delivery,)), _reopened(model, spent, delivery, audited=True)


def _reopened(model: Model, state: State, delivery: int, *, audited: bool) -> State:
    """A new start: no attempt counted, nothing asked, its own entry `accepted` again; but a suspect stays one."""
    fixes, row = model.fixes, state.rows[delivery]
    flag = row.cancel_requested and not fixes.replay_clears_cancel
    fresh = row._replace(status=PENDING, owner=NOBODY, epoch=row.epoch + fixes.replay_raises_epoch)
    lost = min(row.lost, 1) if fixes.replay_keeps_suspicion else 0
    fresh = fresh._replace(attempts=0, lost=lost, reason="", begun=False)
    fresh = fresh._replace(replays=row.replays + 1, audits=row.audits + audited)
    state = with_row(state, delivery, fresh._replace(cancel_requested=flag, asked=False))
    entry = model.entry[delivery]
    known = None if entry == NOBODY else state.ledger[entry]
    if fixes.replay_reopens_entry and known is not None and known.state == FAILED and known.holder == delivery:
        return with_entry(state, entry, known._replace(state=ACCEPTED))
    return state


def look_for_duplicate(model: Model, state: State) -> Iterator[Step]:
    """Publish: a duplicate of an aborted message reads its row, and by policy will reopen it."""
    if not state.budget.reopens:
        return
    for delivery, row in enumerate(state.rows):
        if row.status == ABORTED and model.message(delivery).key:
            spent = state._replace(budget=state.budget._replace(reopens=state.budget.reopens - 1))
            seen = tuple(sorted((*state.reopening, (delivery, row.epoch))))
            yield Event("duplicate published", deliveries=(delivery,)), spent._replace(reopening=seen)


def reopen(model: Model, state: State) -> Iterator[Step]:
    """Publish: the reopening is conditional (still aborted, same epoch) and audited, by=publisher."""
    for index, (delivery, epoch) in enumerate(state.reopening):
        row = state.rows[delivery]
        left = state._replace(reopening=state.reopening[:index] + state.reopening[index + 1 :])
        if (row.status == ABORTED and row.epoch == epoch) or not model.fixes.reopen_is_conditional:
            audited = model.fixes.reopen_is_audited
            yield Event("reopen", deliveries=(delivery,)), _reopened(model, left, delivery, audited=audited)
        else:
            yield Event("nothing to reopen", deliveries=(delivery,)), left
