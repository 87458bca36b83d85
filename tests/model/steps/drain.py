"""Drain (DESIGN §3, I11; §4): stop claiming, give back what was not started, end the lease."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    DRAINING,
    EXITING,
    NO_CLAIM,
    NO_LEASE,
    NOBODY,
    SENDING,
    STRAY,
    UP,
    Event,
    Held,
    State,
    Step,
    put,
)
from tests.model.steps.lease import killed, with_worker
from tests.model.steps.rows import give_back


def drain(model: Model, state: State) -> Iterator[Step]:
    """Drain (I11): from now on nothing is claimed; what is not started is released, what runs is finished."""
    if not state.budget.drains:
        return
    for number, worker in enumerate(state.workers):
        if worker.mode == UP and worker.me != NOBODY:
            spent = state._replace(budget=state.budget._replace(drains=state.budget.drains - 1))
            yield Event("drain", number), with_worker(spent, number, worker._replace(mode=DRAINING))


def last_act(model: Model, state: State) -> Iterator[Step]:
    """Drain (I11): a claim in flight was awaited; then the lease ends and what is still owned is freed, known or not.

    One transaction of two statements: the worker row first, which waits for any claim that holds it, and then, by a
    snapshot that has seen that claim, the rows.
    """
    for number, worker in enumerate(state.workers):
        if worker.mode != DRAINING or any(held.phase != STRAY for held in worker.held):
            continue
        if worker.claim != NO_CLAIM and model.fixes.drain_awaits_claim:
            continue
        if worker.me == NOBODY or not model.fixes.last_act_frees_unknown:
            yield Event("exit", number), killed(state, number)
            continue
        owned = tuple(
            delivery for delivery, row in enumerate(state.rows) if row.status == SENDING and row.owner == worker.me
        )
        if model.fixes.last_act_looks_after_lock:
            yield Event("exit", number, owned), _exited(model, state, number, owned)
        else:
            tokens = tuple(Held(delivery, state.rows[delivery].epoch, worker.me) for delivery in owned)
            yield (
                Event("last act begins", number),
                with_worker(state, number, worker._replace(mode=EXITING, reply=tokens)),
            )


def _exited(model: Model, state: State, number: int, owned: tuple[int, ...]) -> State:
    """What was owned is pending again, its attempt given back; the worker row is gone."""
    me = state.workers[number].me
    for delivery in owned:
        state = give_back(model, state, delivery, raises=model.fixes.release_raises_epoch)
    return killed(state._replace(leases=put(state.leases, me, NO_LEASE)), number)


def end_last_act(model: Model, state: State) -> Iterator[Step]:
    """H10: as one statement it waits for the worker row's lock with the snapshot it began with."""
    for number, worker in enumerate(state.workers):
        if worker.mode == EXITING:
            owned = tuple(held.delivery for held in worker.reply if model.fits(state.rows[held.delivery], held))
            yield Event("exit", number, owned), _exited(model, state, number, owned)
