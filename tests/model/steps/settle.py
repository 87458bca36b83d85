"""Settle (DESIGN §4): ledger, then row, then history in one transaction, fenced by the token."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    ABORT,
    CANCELLED,
    CLAIMED,
    CONFLICT,
    DONE,
    DRAINING,
    FAILED,
    GAVE_UP,
    KNOWN_DONE,
    LATE,
    LEDGER_LEFT,
    NOBODY,
    OBEY_CANCEL,
    OBEY_CONFLICT,
    OUTCOME,
    RELEASE,
    SUCCEEDED,
    UNSURE_DONE,
    UNSURE_OPEN,
    UP,
    Entry,
    Event,
    Held,
    State,
    Step,
)
from tests.model.steps.execute import holding, knows, swap
from tests.model.steps.rows import abort, fail_entry, give_back, rest, succeed, with_entry, with_row

REASONS = {ABORT: GAVE_UP, OBEY_CANCEL: CANCELLED, OBEY_CONFLICT: CONFLICT}


def settle(model: Model, state: State) -> Iterator[Step]:
    """Settle (and release): the transaction commits and is answered; or either of the two fails."""
    for phase in (OUTCOME, LATE):
        for number, held in holding(state, phase, UP, DRAINING):
            yield from _settle(model, state, number, held)


def _settle(model: Model, state: State, number: int, held: Held) -> Iterator[Step]:
    fits = model.fits(state.rows[held.delivery], held)
    settled = _transaction(model, state, held, fits=fits)
    name = ("released" if held.outcome == RELEASE else "settled") if fits else "lost"
    after = _remember(model, held) if fits else ()
    yield Event(name, number, (held.delivery,), held), swap(settled, number, held, *after)
    yield from _unanswered(state, settled, number, held, fits=fits)


def release(model: Model, state: State) -> Iterator[Step]:
    """Claim, drain: what is not started within a quarter of the lease, or when draining begins, is released."""
    for number, claimed in holding(state, CLAIMED, UP, DRAINING):
        held = knows(claimed, RELEASE)
        yield from _settle(model, swap(state, number, claimed, held), number, held)


def _remember(model: Model, held: Held) -> tuple[Held, ...]:
    """Nothing; when settle is two transactions, that the ledger is still to be written."""
    keyed = model.entry[held.delivery] != NOBODY and held.outcome == DONE
    return (held._replace(phase=LEDGER_LEFT),) if keyed and not model.fixes.settle_is_one_transaction else ()


def _unanswered(state: State, settled: State, number: int, held: Held, *, fits: bool) -> Iterator[Step]:
    """An ambiguous commit, in both directions. The worker cannot tell them apart and will ask again."""
    if not state.budget.ambiguous:
        return
    budget = state.budget._replace(ambiguous=state.budget.ambiguous - 1)
    committed = held._replace(phase=UNSURE_DONE)
    open_ = held if held.phase == LATE else held._replace(phase=UNSURE_OPEN)
    if fits:
        event = Event("settle unanswered, committed", number, (held.delivery,), held)
        yield event, swap(settled._replace(budget=budget), number, held, committed)
    event = Event("settle unanswered, not committed", number, (held.delivery,), held)
    yield event, swap(state._replace(budget=budget), number, held, open_)


def settle_again(model: Model, state: State) -> Iterator[Step]:
    """Settle: after an ambiguous commit the same token is tried again; 0 rows and (id, epoch) in history is mine."""
    for phase in (UNSURE_OPEN, UNSURE_DONE):
        for number, held in holding(state, phase, UP, DRAINING):
            fits = model.fits(state.rows[held.delivery], held)
            if phase == UNSURE_DONE:
                name = "settled twice" if fits else "resolved: it was committed"
            else:
                name = "resolved: it was not committed" if fits else "lost"
            settled = _transaction(model, state, held, fits=fits)
            yield Event(name, number, (held.delivery,), held), swap(settled, number, held)


def write_ledger_late(model: Model, state: State) -> Iterator[Step]:
    """Settle as two transactions, the row first: what the protocol must not do."""
    for number, held in holding(state, LEDGER_LEFT, UP, DRAINING):
        written = _record_success(model, state, held)
        yield Event("ledger written", number, (held.delivery,), held), swap(written, number, held)


def _transaction(model: Model, state: State, held: Held, *, fits: bool) -> State:
    """Ledger first. With a key a success is true whoever brings it (I7); a stale failure says nothing."""
    fixes = model.fixes
    if held.outcome == DONE and fixes.settle_is_one_transaction and (fits or fixes.stale_success_recorded):
        state = _record_success(model, state, held)
    if model.message(held.delivery).transactional and held.outcome == DONE:
        state = _transactional_effect(model, state, held, fits=fits)
    if not fits:
        if held.outcome == ABORT and not fixes.stale_failure_leaves_ledger:
            return fail_entry(model, state, held.delivery)
        return state
    return _settle_row(model, state, held)


def _record_success(model: Model, state: State, held: Held) -> State:
    """The first success wins; an entry that succeeded, with whichever digest, is left alone."""
    entry = model.entry[held.delivery]
    if entry == NOBODY:
        return state
    known = state.ledger[entry]
    if known is not None and known.state == SUCCEEDED:
        return state
    return with_entry(state, entry, Entry(model.digest[held.delivery], SUCCEEDED, held.delivery))


def _transactional_effect(model: Model, state: State, held: Held, *, fits: bool) -> State:
    """The handler's writes commit with the fenced settle; 0 rows roll them back."""
    if not fits and model.fixes.tx_rolls_back_when_lost:
        return state
    row = state.rows[held.delivery]
    return with_row(state, held.delivery, row._replace(effects=row.effects + 1))


def _settle_row(model: Model, state: State, held: Held) -> State:
    """The row, by outcome: DESIGN §2."""
    fixes, delivery = model.fixes, held.delivery
    row, raises = state.rows[delivery], model.fixes.settle_raises_epoch
    if held.outcome == RELEASE:
        return give_back(model, state, delivery, raises=fixes.release_raises_epoch)
    if held.outcome in {DONE, KNOWN_DONE}:
        if fixes.done_reads_ledger and _another_won(model, state, delivery):
            return abort(model, state, delivery, CONFLICT, raises=raises, reads_ledger=False)
        return succeed(state, delivery, raises=raises)
    if held.outcome in REASONS or row.attempts >= model.scenario.max_attempts:
        reason = REASONS.get(held.outcome, GAVE_UP)
        reads = fixes.every_abort_reads_ledger
        return abort(model, state, delivery, reason, raises=raises, reads_ledger=reads)
    return rest(model, state, delivery, FAILED, attempts=row.attempts, raises=raises)


def _another_won(model: Model, state: State, delivery: int) -> bool:
    """The effect entry succeeded with another digest."""
    entry = model.entry[delivery]
    known = None if entry == NOBODY else state.ledger[entry]
    return known is not None and known.state == SUCCEEDED and known.digest != model.digest[delivery]
