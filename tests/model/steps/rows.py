"""How one delivery leaves `sending`, or ends: shared by settle, release, reclaim, cancel and replay."""

from __future__ import annotations

from tests.model.model import Model
from tests.model.state import (
    ABORTED,
    ACCEPTED,
    CANCELLED,
    FAILED,
    NOBODY,
    PENDING,
    SUCCEEDED,
    Entry,
    Row,
    State,
    put,
)


def with_row(state: State, delivery: int, row: Row) -> State:
    """The state with one delivery replaced."""
    return state._replace(rows=put(state.rows, delivery, row))


def with_entry(state: State, entry: int, known: Entry) -> State:
    """The state with one effect entry replaced; a success is remembered for ever by the ghost."""
    if known.state == SUCCEEDED:
        state = state._replace(recorded=put(state.recorded, entry, known.digest))
    return state._replace(ledger=put(state.ledger, entry, known))


def succeed(state: State, delivery: int, *, raises: bool) -> State:
    """The row goes to `history`."""
    row = state.rows[delivery]
    return with_row(
        state, delivery, row._replace(status=SUCCEEDED, owner=NOBODY, epoch=row.epoch + raises, cancel_requested=False)
    )


def abort(model: Model, state: State, delivery: int, reason: str, *, raises: bool, reads_ledger: bool) -> State:
    """The row becomes a dead letter, unless the ledger knows that it was done; its reservation ends."""
    if reads_ledger and model.done_before(state, delivery):
        return succeed(state, delivery, raises=raises)
    row = state.rows[delivery]
    state = with_row(
        state, delivery, row._replace(status=ABORTED, owner=NOBODY, epoch=row.epoch + raises, reason=reason)
    )
    return fail_entry(model, state, delivery)


def reserve(model: Model, state: State, delivery: int) -> State | None:
    """The effect entry is this delivery's from now on, until it is succeeded or aborted; None: it is another's."""
    entry, digest = model.entry[delivery], model.digest[delivery]
    known = state.ledger[entry]
    if known is not None and known.state == ACCEPTED and known.holder != delivery:
        return None
    if known is not None and known.state == SUCCEEDED:
        return state
    return with_entry(state, entry, Entry(digest, ACCEPTED, delivery))


def fail_entry(model: Model, state: State, delivery: int) -> State:
    """An entry that this delivery reserved says `failed` from now on, so that another may take it over."""
    entry = model.entry[delivery]
    if entry == NOBODY:
        return state
    known = state.ledger[entry]
    if known is None or known.state != ACCEPTED or known.holder != delivery:
        return state
    return with_entry(state, entry, known._replace(state=FAILED))


def rest(
    model: Model, state: State, delivery: int, status: str, *, attempts: int, raises: bool, lost: int = 0
) -> State:
    """The row waits for its next claim, unless it was cancelled meanwhile."""
    row = state.rows[delivery]
    row = row._replace(attempts=attempts, lost=row.lost + lost)
    if row.cancel_requested and model.fixes.cancel_outlives_owner:
        every = model.fixes.every_abort_reads_ledger
        return abort(model, with_row(state, delivery, row), delivery, CANCELLED, raises=raises, reads_ledger=every)
    return with_row(state, delivery, row._replace(status=status, owner=NOBODY, epoch=row.epoch + raises))


def give_back(model: Model, state: State, delivery: int, *, raises: bool) -> State:
    """Released: pending again, and the attempt that never started is not counted."""
    attempts = state.rows[delivery].attempts - 1
    return rest(model, state, delivery, PENDING, attempts=attempts, raises=raises)
