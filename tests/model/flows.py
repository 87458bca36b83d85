"""One run of a workflow and everything that may happen to it, as a small model that is searched to its last state.

The run is one delivery. Its code charges a card (a step outside the database, with an undo), waits for a signal, writes
an effect (a transactional step), and ends. Two workers claim it, die, or lose their lease and go on until they are told
so. A caller sends the signal in a transaction of its own. An operator gives the run up, and its steps are undone.

A worker that lost its lease starts nothing (I12), but what it was about to write it still tries to write.

What must hold in every state:
- `stuck`: no run is parked while a signal for it is there and nothing would wake it (R2).
- `repeated`: nothing is charged after the result of the charge was stored (R3).
- `doubled`: the transactional step has one effect (I6).
- `unpaid`: whatever was charged is refunded once the undo is over (R4).
- `late`: no effect is committed after the undo is over (R3, R5).

It is smaller than the code will be: one step of each kind, one wait without a time limit, no rewind; a charge is one
moment. One that is under way when the lease ends cannot be stopped, and may come after its refund: it is an open row,
undone as "result unknown".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
DUE, PARKED, DONE, GIVEN_UP, UNDONE = "due", "parked", "done", "given up", "undone"
NOTHING, WRITTEN, COMMITTED, TAKEN = "nothing", "written", "committed", "taken"
OPEN, STORED = "open", "stored"

CHARGE, STORE, PARK, EFFECT = "charge", "store the charge", "park", "commit the effect"


@dataclass(frozen=True)
class Flows:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    signals_call: bool = True
    """A signal appends a call, and a claim heeds it; it does not look at the run itself, which may change meanwhile."""
    calls_stay: bool = True
    """A call is removed only when its run is parked or over."""
    steps_are_fenced: bool = True
    """A step is stored only by the worker that owns the run, with its epoch."""
    fence_locks: bool = True
    """The fence of a step locks the delivery until the commit."""
    undo_opens: bool = True
    """A step with an undo writes an open row before it begins, and an open row is undone, too."""


class Running(NamedTuple):
    """What a worker does: the epoch of its claim, what it is about to do, and whether it has lost its lease."""

    epoch: int
    next: str = ""  # empty: it decides by the rows that are stored
    lost: bool = False
    knows_charge: bool = False  # the result of the charge was stored when it claimed


class State(NamedTuple):
    """Where everything stands."""

    status: str = DUE  # or the worker that has it in flight
    epoch: int = 0
    charge: str = NOTHING  # its row: NOTHING, OPEN, STORED
    charged: int = 0
    charged_again: bool = False
    refunded: bool = False
    signal: str = NOTHING
    call: bool = False
    effects: int = 0
    effect_row: bool = False
    effect_undone: bool = False
    workers: tuple[Running | None, Running | None] = (None, None)
    faults: int = 2


Step = tuple[str, State]


def steps(state: State, fixes: Flows) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        running = state.workers[number]
        if running is None:
            if state.status == DUE:
                claimed = Running(state.epoch + 1, knows_charge=state.charge == STORED)
                yield f"{name} claims", _put(state, number, claimed)._replace(status=name, epoch=state.epoch + 1)
            continue
        yield from _run(state, fixes, number, running)
        yield from _fail(state, number, running)
    yield from _signal(state, fixes)
    yield from _heed(state, fixes)
    yield from _undo(state, fixes)


def _put(state: State, number: int, running: Running | None) -> State:
    one, other = state.workers
    return state._replace(workers=(running, other) if number == 0 else (one, running))


def _owns(state: State, number: int, running: Running) -> bool:
    return state.status == WORKERS[number] and state.epoch == running.epoch


def _run(state: State, fixes: Flows, number: int, running: Running) -> Iterator[Step]:
    """One step of a worker: it decides what is next, does it, or tries to write what it has done."""
    name, owns = WORKERS[number], _owns(state, number, running)
    match running.next:
        case "":
            if not running.lost:
                yield from _decide(state, fixes, number, running)
        case "charge":
            if not running.lost:  # I12: it starts nothing after its lease can have ended
                again = state.charged_again or state.charge == STORED
                charged = state._replace(charged=state.charged + 1, charged_again=again)
                yield f"{name} charges", _put(charged, number, running._replace(next=STORE))
        case "store the charge":
            if owns or not fixes.steps_are_fenced:
                after = running._replace(next="", knows_charge=True)
                yield f"{name} stores the charge", _put(state, number, after)._replace(charge=STORED)
            else:
                yield f"{name} is told that it has lost the run", _put(state, number, None)
        case "park":
            if owns:
                yield f"{name} parks", _put(state, number, None)._replace(status=PARKED, epoch=state.epoch + 1)
            else:
                yield f"{name} is told that it has lost the run", _put(state, number, None)
        case _:
            yield from _commit_effect(state, fixes, number, running)


def _decide(state: State, fixes: Flows, number: int, running: Running) -> Iterator[Step]:
    """What comes next by the rows that are stored: the charge, the wait, the effect, or the end."""
    name, owns = WORKERS[number], _owns(state, number, running)
    if not owns:
        return
    if not running.knows_charge:
        opened = state._replace(charge=OPEN if fixes.undo_opens and state.charge == NOTHING else state.charge)
        yield f"{name} opens the charge", _put(opened, number, running._replace(next=CHARGE))
    elif state.signal == COMMITTED:
        yield f"{name} takes the signal", state._replace(signal=TAKEN)
    elif state.signal != TAKEN:
        yield f"{name} sees no signal", _put(state, number, running._replace(next=PARK))
    elif not state.effect_row:
        yield f"{name} begins the effect", _put(state, number, running._replace(next=EFFECT))
    else:
        yield f"{name} ends the run", _put(state, number, None)._replace(status=DONE, epoch=state.epoch + 1)


def _commit_effect(state: State, fixes: Flows, number: int, running: Running) -> Iterator[Step]:
    """The effect, its row and the fence commit together. A fence without a lock was read before: it proves nothing."""
    name = WORKERS[number]
    if state.effect_row or (fixes.fence_locks and not _owns(state, number, running)):
        yield f"{name} rolls the effect back", _put(state, number, None)
    else:
        done = state._replace(effects=state.effects + 1, effect_row=True)
        yield f"{name} commits the effect", _put(done, number, running._replace(next=""))


def _fail(state: State, number: int, running: Running) -> Iterator[Step]:
    """A worker dies, or loses its lease and does not know it yet: the run is free for others."""
    name = WORKERS[number]
    if running.lost and not running.next:
        yield f"{name} finds out that its lease is lost", _put(state, number, None)
    if not state.faults or not _owns(state, number, running):
        return
    freed = state._replace(status=DUE, epoch=state.epoch + 1, faults=state.faults - 1)
    yield f"{name} dies", _put(freed, number, None)
    yield f"{name} loses its lease", _put(freed, number, running._replace(lost=True))


def _signal(state: State, fixes: Flows) -> Iterator[Step]:
    """The caller writes the signal in its transaction, and commits later. Nobody sees it before."""
    if state.signal == NOTHING:
        written = state._replace(signal=WRITTEN)
        if not fixes.signals_call and state.status == PARKED:  # it wakes the run itself, if it sees it parked
            written = written._replace(status=DUE, epoch=state.epoch + 1)
        yield "the caller writes the signal", written
    elif state.signal == WRITTEN:
        yield "the caller commits the signal", state._replace(signal=COMMITTED, call=fixes.signals_call)


def _heed(state: State, fixes: Flows) -> Iterator[Step]:
    """A claim heeds calls, under the lock of the delivery."""
    if not state.call:
        return
    if state.status == PARKED:
        yield "a claim wakes the run", state._replace(status=DUE, epoch=state.epoch + 1, call=False)
    elif state.status in (DONE, GIVEN_UP, UNDONE) or not fixes.calls_stay:
        yield "a claim removes the call", state._replace(call=False)


def _undo(state: State, fixes: Flows) -> Iterator[Step]:
    """An operator gives up a run that nobody runs; a follow-up delivery then undoes its steps, and ends."""
    if state.status in (DUE, PARKED):
        yield "the run is given up", state._replace(status=GIVEN_UP, epoch=state.epoch + 1)
    elif state.status == GIVEN_UP:
        known = state.charge in ((OPEN, STORED) if fixes.undo_opens else (STORED,))
        undone = state._replace(refunded=known, effect_undone=state.effect_row)
        yield "its steps are undone", undone._replace(status=UNDONE)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    if state.status == PARKED and state.signal == COMMITTED and not state.call:
        return "stuck"
    if state.charged_again:
        return "repeated"
    if state.effects > 1:
        return "doubled"
    if state.status == UNDONE and state.charged and not state.refunded:
        return "unpaid"
    if state.status == UNDONE and state.effects and not state.effect_undone:
        return "late"
    return None


def search(fixes: Flows) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Flows:
    """The protocol with one fix taken out."""
    return replace(Flows(), **{name: False})
