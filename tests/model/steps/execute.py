"""Execute (DESIGN §4): look at the ledger, start, and learn the outcome; or obey a cancel, a timeout, a drain."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    ABORT,
    CLAIMED,
    DONE,
    DRAINING,
    KNOWN_DONE,
    LATE,
    LIVE,
    NOBODY,
    OBEY_CANCEL,
    OBEY_CONFLICT,
    OUTCOME,
    RELEASE,
    RETRY,
    RUNNING,
    STRAY,
    SUCCEEDED,
    UP,
    Entry,
    Event,
    Held,
    State,
    Step,
)
from tests.model.steps.lease import killed, with_worker
from tests.model.steps.rows import reserve, with_row

SEND = "send"


def as_seen(known: Entry | None) -> str:
    """What a reader of an effect entry remembers."""
    return "" if known is None else f"{known.state} {known.digest}"


def holding(state: State, phase: str, *modes: str) -> Iterator[tuple[int, Held]]:
    """Every delivery that a worker in one of these modes holds in this phase."""
    for number, worker in enumerate(state.workers):
        if worker.mode in modes:
            for held in worker.held:
                if held.phase == phase:
                    yield number, held


def swap(state: State, number: int, held: Held, *now: Held) -> State:
    """The worker remembers something else in place of `held`."""
    worker = state.workers[number]
    index = worker.held.index(held)
    return with_worker(state, number, worker._replace(held=worker.held[:index] + now + worker.held[index + 1 :]))


def knows(held: Held, outcome: str) -> Held:
    """The outcome is known, and to be settled; of what the claim said only the suspicion is still of use."""
    return Held(held.delivery, held.epoch, held.owner, OUTCOME, outcome, held.suspect)


def strays(held: Held, phase: str = STRAY, outcome: str = "") -> Held:
    """Nobody waits for it any more; its token is used up, or will be."""
    return Held(held.delivery, held.epoch, held.owner, phase, outcome)


def start(model: Model, state: State) -> Iterator[Step]:
    """Execute: in its lease by its own clock, the worker looks at the effect entry and starts, or need not."""
    for number, held in holding(state, CLAIMED, UP):
        if state.leases[held.owner] != LIVE and model.fixes.starts_only_in_lease:
            continue
        verdict, looked = _look(model, state, held)
        what = (held.delivery,)
        if verdict == SEND:
            row = looked.rows[held.delivery]
            if model.fits(row, held):
                looked = with_row(looked, held.delivery, row._replace(begun=True))
            running = held._replace(phase=RUNNING, again=False, seen="")
            yield Event("start", number, what, held), swap(looked, number, held, running)
        else:
            yield Event(f"look: {verdict}", number, what, held), swap(looked, number, held, knows(held, verdict))


def _look(model: Model, state: State, held: Held) -> tuple[str, State]:
    """Send, or not: Done before, conflict, or (with reservations) wait until another delivery is decided."""
    entry, digest = model.entry[held.delivery], model.digest[held.delivery]
    if entry == NOBODY:
        return SEND, state
    reserving = model.fixes.reserves_effect and not model.scenario.reserves_at_claim
    seen = held.seen
    if reserving or (held.again and model.fixes.rereads_before_sending):
        seen = as_seen(state.ledger[entry])
    if seen.startswith(SUCCEEDED):
        return (KNOWN_DONE if seen == as_seen(Entry(digest, SUCCEEDED, NOBODY)) else OBEY_CONFLICT), state
    if not reserving:
        return SEND, state
    reserved = reserve(model, state, held.delivery)
    return (RELEASE, state) if reserved is None else (SEND, reserved)


def finish(model: Model, state: State) -> Iterator[Step]:
    """Execute: the destination takes it (Done), or refuses it for now (Retry) or for good (Abort)."""
    for number, held in holding(state, RUNNING, UP, DRAINING):
        what = (held.delivery,)
        if model.message(held.delivery).poison:
            continue
        sent = _effect(model, state, held.delivery)
        yield Event("sent", number, what, held), swap(sent, number, held, knows(held, DONE))
        if state.budget.failures:
            spent = state._replace(budget=state.budget._replace(failures=state.budget.failures - 1))
            for outcome in (RETRY, ABORT):
                yield Event(f"failed: {outcome}", number, what, held), swap(spent, number, held, knows(held, outcome))


def _effect(model: Model, state: State, delivery: int) -> State:
    """Ghost: the destination has it once more. A transactional handler's effect comes with its settle."""
    row = state.rows[delivery]
    if model.message(delivery).transactional:
        return state
    return with_row(state, delivery, row._replace(effects=row.effects + 1))


def kill(model: Model, state: State) -> Iterator[Step]:
    """Execute: a poison message takes its process down, and that is no fault of the world's."""
    for phase in (RUNNING, STRAY):
        for number, held in holding(state, phase, UP, DRAINING):
            if model.message(held.delivery).poison:
                yield Event("poison kills", number, (held.delivery,), held), killed(state, number)


def time_out(model: Model, state: State) -> Iterator[Step]:
    """Execute: the watchdog, or the end of a drain's grace, settles Retry: it had started, its attempt counts.

    What cannot be stopped goes on.
    """
    if not state.budget.timeouts:
        return
    for number, held in holding(state, RUNNING, UP, DRAINING):
        spent = state._replace(budget=state.budget._replace(timeouts=state.budget.timeouts - 1))
        drained = state.workers[number].mode == DRAINING and not model.fixes.drain_counts_what_started
        left = knows(held, RELEASE if drained else RETRY), strays(held)
        yield Event("time out", number, (held.delivery,), held), swap(spent, number, held, *left)


def obey_cancel(model: Model, state: State) -> Iterator[Step]:
    """Cancel: the heartbeat tells the owner of the flag; it stops what it can and settles CANCELLED."""
    for phase in (CLAIMED, RUNNING):
        for number, held in holding(state, phase, UP, DRAINING):
            row = state.rows[held.delivery]
            if row.cancel_requested and row.owner == held.owner == state.workers[number].me:
                obeyed = knows(held, OBEY_CANCEL)
                left = (obeyed, strays(held)) if phase == RUNNING else (obeyed,)
                yield Event("obey cancel", number, (held.delivery,), held), swap(state, number, held, *left)


def finish_stray(model: Model, state: State) -> Iterator[Step]:
    """Execute: what nobody could stop succeeds after all, with a token that is used up; or ends quietly."""
    for number, held in holding(state, STRAY, UP, DRAINING):
        what = (held.delivery,)
        sent = _effect(model, state, held.delivery)
        yield Event("stray sent", number, what, held), swap(sent, number, held, strays(held, LATE, DONE))
        yield Event("stray ends", number, what, held), swap(state, number, held)
