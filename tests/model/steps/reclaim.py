"""Reclaim (DESIGN §4): bury the workers whose lease is over, then free what has no worker row."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    ENDED,
    GAVE_UP,
    LATE,
    LIVE,
    NO_LEASE,
    OUTCOME,
    PENDING,
    RENEWING,
    SENDING,
    UNSURE_OPEN,
    WORKER_LOST,
    Event,
    State,
    Step,
)
from tests.model.steps.rows import abort, rest, with_row


def reclaim(model: Model, state: State) -> Iterator[Step]:
    """Reclaim: one transaction, by anyone. A row whose lock somebody holds is skipped, and found the next time."""
    if not model.fixes.reclaim_buries_first:
        yield from _reclaim_from_a_snapshot(model, state)
        return
    if not model.fixes.free_by_absence:
        yield from _reclaim_by_the_clock(model, state)
        return
    buried, ended = _bury(state)
    free = [delivery for delivery in _sending(buried) if _is_free(model, buried, delivery, ended)]
    if buried is state and not free:
        return
    for skipped in [None, *(delivery for delivery in free if _may_be_locked(model, state, delivery))]:
        freed = tuple(delivery for delivery in free if delivery != skipped)
        if skipped is not None and buried is state:
            continue  # nothing would change
        yield Event("reclaim" if skipped is None else "reclaim skips", deliveries=freed), _free(model, buried, freed)


def _sending(state: State) -> list[int]:
    return [delivery for delivery, row in enumerate(state.rows) if row.status == SENDING]


def _bury(state: State) -> tuple[State, set[int]]:
    """Delete the worker rows whose lease is over. One under renewal is locked: the renewal decides."""
    ended = {incarnation for incarnation, lease in enumerate(state.leases) if lease == ENDED}
    if not ended:
        return state, ended
    leases = tuple(NO_LEASE if lease == ENDED else lease for lease in state.leases)
    return state._replace(leases=leases), ended


def _is_free(model: Model, state: State, delivery: int, ended: set[int]) -> bool:
    """No worker row (an anti-join); a join with the rows just deleted would miss those of the long buried."""
    owner = state.rows[delivery].owner
    return state.leases[owner] == NO_LEASE if model.fixes.reclaim_is_anti_join else owner in ended


def _may_be_locked(model: Model, state: State, delivery: int) -> bool:
    """The owner's settle may be under way and hold the row."""
    return any(
        held.delivery == delivery and held.phase in {OUTCOME, LATE, UNSURE_OPEN}
        for worker in state.workers
        for held in worker.held
    )


def _free(model: Model, state: State, deliveries: tuple[int, ...]) -> State:
    """lost + 1, the attempt given back; at the limit aborted as WORKER_LOST, unless the ledger knows better."""
    fixes, limit = model.fixes, model.scenario.lost_limit
    for delivery in deliveries:
        row, raises = state.rows[delivery], fixes.reclaim_raises_epoch
        attempts = row.attempts - 1 if fixes.lost_counted_apart else row.attempts
        gone = row.lost + 1 >= limit if fixes.lost_counted_apart else row.attempts >= model.scenario.max_attempts
        if gone:
            state = with_row(state, delivery, row._replace(attempts=attempts, lost=row.lost + 1))
            reads = fixes.reclaim_reads_ledger
            state = abort(model, state, delivery, WORKER_LOST, raises=raises, reads_ledger=reads)
        else:
            state = rest(model, state, delivery, PENDING, attempts=attempts, raises=raises, lost=1)
    return state


def _reclaim_from_a_snapshot(model: Model, state: State) -> Iterator[Step]:
    """H1: UPDATE delivery … FROM worker WHERE it has ended: a renewal that is not committed is not seen."""
    over = {incarnation for incarnation, lease in enumerate(state.leases) if lease in {ENDED, RENEWING}}
    freed = tuple(delivery for delivery in _sending(state) if state.rows[delivery].owner in over)
    if freed:
        yield Event("reclaim", deliveries=freed), _free(model, state, freed)


def _reclaim_by_the_clock(model: Model, state: State) -> Iterator[Step]:
    """H1: two statements; the second frees what has no owner with `expires_at > clock`, at a later clock."""
    if not state.freeing:
        if RENEWING not in state.leases:  # the DELETE waits for a renewal that has the lock
            yield Event("reclaim buries"), _bury(state)[0]._replace(freeing=True)
        return
    freed = tuple(delivery for delivery in _sending(state) if state.leases[state.rows[delivery].owner] != LIVE)
    yield Event("reclaim", deliveries=freed), _free(model, state._replace(freeing=False), freed)


def reclaim_overdue(model: Model, state: State) -> Iterator[Step]:
    """H7: anyone takes back what was claimed long ago, from a live owner too, and the attempt is burnt."""
    if model.fixes.owner_enforces_max_processing:
        return
    for delivery in _sending(state):
        row = state.rows[delivery]
        event = Event("reclaim overdue", deliveries=(delivery,))
        if row.attempts >= model.scenario.max_attempts:
            yield event, abort(model, state, delivery, GAVE_UP, raises=True, reads_ledger=True)
        else:
            yield event, rest(model, state, delivery, PENDING, attempts=row.attempts, raises=True)
