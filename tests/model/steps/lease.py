"""Lease (DESIGN §4): held by the incarnation of a worker, renewed by its heartbeat, ended by time or by itself.

A renewal in time changes nothing that the model can see, so there is no step for it; what is modelled is the lease
that ends, the renewal that comes too late, and the one that is not committed when the lease ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    CLAIMED,
    DOWN,
    DRAINING,
    ENDED,
    HUNG,
    LIVE,
    NO_CLAIM,
    NO_LEASE,
    NOBODY,
    ON_ITS_WAY,
    OUTCOME,
    RELEASE,
    RENEWING,
    RUNNING,
    SENDING,
    STRAY,
    UP,
    Event,
    Held,
    State,
    Step,
    Worker,
    put,
)


def with_worker(state: State, number: int, worker: Worker) -> State:
    """The state with one worker replaced."""
    return state._replace(workers=put(state.workers, number, worker))


def _with_lease(state: State, incarnation: int, lease: str) -> State:
    return state._replace(leases=put(state.leases, incarnation, lease))


def register(model: Model, state: State) -> Iterator[Step]:
    """Lease: a process that starts, or that lost its lease, takes a new random id and a worker row."""
    for number, worker in enumerate(state.workers):
        if worker.mode == DOWN or (worker.mode == UP and worker.me == NOBODY):
            me = len(state.leases)
            registered = with_worker(state, number, worker._replace(mode=UP, me=me))
            yield Event("register", number), registered._replace(leases=(*state.leases, LIVE))


def lapse(model: Model, state: State) -> Iterator[Step]:
    """Lease: it ends, by time or by the supervisor of a dead child.

    Under a living worker that is a fault: a pause, or heartbeats that do not arrive.
    """
    living = {worker.me for worker in state.workers if worker.me != NOBODY}
    for incarnation, lease in enumerate(state.leases):
        if lease != LIVE:
            continue
        if incarnation not in living:
            yield Event("lapse of the dead"), _with_lease(state, incarnation, ENDED)
        elif state.budget.lapses:
            number = next(n for n, worker in enumerate(state.workers) if worker.me == incarnation)
            spent = state._replace(budget=state.budget._replace(lapses=state.budget.lapses - 1))
            yield Event("lapse", number), _with_lease(spent, incarnation, ENDED)
            if model.scenario.renewal_in_flight:
                yield Event("lapse under renewal", number), _with_lease(spent, incarnation, RENEWING)


def finish_renewal(model: Model, state: State) -> Iterator[Step]:
    """Lease: a renewal that began in time commits after the old end has passed, or is rolled back."""
    for incarnation, lease in enumerate(state.leases):
        if lease == RENEWING:
            yield Event("renewal commits"), _with_lease(state, incarnation, LIVE)
            yield Event("renewal fails"), _with_lease(state, incarnation, ENDED)


def renew_too_late(model: Model, state: State) -> Iterator[Step]:
    """Lease: `renew … WHERE expires_at > clock` finds 0 rows: drop everything held, take a new id."""
    for number, worker in enumerate(state.workers):
        if worker.mode not in {UP, DRAINING} or worker.me == NOBODY:
            continue
        lease = state.leases[worker.me]
        if lease == ENDED and not model.fixes.renew_only_live:
            yield Event("renew an ended lease", number), _with_lease(state, worker.me, LIVE)
        elif lease in {ENDED, NO_LEASE}:
            yield Event("renew finds nothing", number), _drop(state, number, worker)


def _drop(state: State, number: int, worker: Worker) -> State:
    """What had not started is forgotten, what runs and cannot be stopped goes on without its row.

    An outcome that is already known is kept: its success is true, and settling it finds out that the row is lost.
    """
    state = cast_adrift(state, worker)
    held = tuple(
        one._replace(phase=STRAY, suspect=False, again=False, seen="") if one.phase == RUNNING else one
        for one in worker.held
        if one.phase != CLAIMED
    )
    return with_worker(state, number, worker._replace(me=NOBODY, claim=NO_CLAIM, reply=(), held=held))


def compare(model: Model, state: State) -> Iterator[Step]:
    """Lease: the worker compares what the database says it owns with what it holds, and releases the difference."""
    if not model.fixes.compares_owned_with_held:
        return
    for number, worker in enumerate(state.workers):
        if worker.mode not in {UP, DRAINING} or worker.me == NOBODY or state.leases[worker.me] != LIVE:
            continue
        if worker.claim != NO_CLAIM and model.fixes.compare_counts_claim_in_flight:
            continue
        known = {(held.delivery, held.epoch) for held in worker.held}
        unknown = tuple(
            Held(delivery, row.epoch, worker.me, OUTCOME, RELEASE)
            for delivery, row in enumerate(state.rows)
            if row.status == SENDING and row.owner == worker.me and (delivery, row.epoch) not in known
        )
        if unknown:
            found = worker._replace(held=(*worker.held, *unknown))
            event = Event("compare", number, tuple(held.delivery for held in unknown))
            yield event, with_worker(state, number, found)


def crash(model: Model, state: State) -> Iterator[Step]:
    """A process dies anywhere. Its claim may go on in the backend; its lease stays until time ends it."""
    for number, worker in enumerate(state.workers):
        if worker.mode == HUNG and model.fixes.hung_worker_stops_renewing:
            yield Event("the heartbeat gives up", number), killed(state, number)
        if worker.mode in {UP, DRAINING} and state.budget.crashes:
            spent = state._replace(budget=state.budget._replace(crashes=state.budget.crashes - 1))
            yield Event("crash", number), killed(spent, number)
            if model.scenario.hangs:
                yield Event("hang", number), with_worker(spent, number, worker._replace(mode=HUNG))


def killed(state: State, number: int) -> State:
    """The process is gone with everything it knew."""
    return with_worker(cast_adrift(state, state.workers[number]), number, Worker())


def cast_adrift(state: State, worker: Worker) -> State:
    """Nobody waits any more for the claim that this worker has on its way."""
    if worker.claim not in ON_ITS_WAY:
        return state
    return state._replace(adrift=tuple(sorted((*state.adrift, (worker.me, worker.claim)))))
