"""Rewinding, undoing and replaying one run, and what follows a restart, as a small model searched to its last state.

The code of the run takes a signal, charges a card (a step with an undo), begins a child, waits for it, and ends. It may
become a dead letter at any step. Two operators act on the dead letter at once: they rewind it to its first step, replay
it, or undo it. A worker that lost its lease still tries to store its charge.

What must hold in every state:
- `revived`: a run whose undo has begun is not run again (R5).
- `old result`: what is stored for a step was made after the last rewind (R12).
- `repeated`: nothing is charged again after its result was stored, unless it was rewound (R3).
- `stuck`: no run is parked while the signal that it waits for is there (R2), or belongs to a step that was rewound.
- `orphan`: when the run has ended, no child that was rewound still waits to be run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
DUE, PARKED, DONE, DEAD = "due", "parked", "done", "dead"
STORE: Final = "store the charge"
FREE, TAKEN, TAKEN_BY_REWOUND = "free", "taken", "taken by a rewound step"
REWIND, REPLAY, UNDO = "rewind", "replay", "undo"


@dataclass(frozen=True)
class Rewinds:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    acts_lock: bool = True
    """An act locks the dead letter before it looks at it, until its commit."""
    undo_is_final: bool = True
    """Replay and rewind are refused once the undo has begun."""
    steps_are_fenced: bool = True
    """A step is stored only by the worker that owns the run, with its epoch."""
    rewound_are_renamed: bool = True
    """A rewound step gives up its key, so that the next one of that key can be stored."""
    signals_are_freed: bool = True
    """A signal that a rewound wait has got is there for the next wait."""
    rewind_is_one_commit: bool = True
    """Steps, signals and the replay are one commit: a run that is woken in between sees no signal, and parks."""
    children_are_cancelled: bool = True
    """Children of a rewound step that have not ended are cancelled."""


class Running(NamedTuple):
    """A worker: the epoch of its claim, what it is about to do, whether its lease is lost, and when it charged."""

    epoch: int
    next: str = ""
    lost: bool = False
    charged_at: int = 0


class State(NamedTuple):
    """Where everything stands."""

    status: str = DUE  # or the worker that has it in flight
    epoch: int = 0
    signal: str = FREE
    charge: str = ""  # "", "open", "stored", "rewound"
    made_at: int = 0  # the rewinds that had been made when the stored result was made
    told: bool = False  # ghost: a worker was told that the charge is stored, since the last rewind
    repeated: bool = False
    child: str = ""  # "", "waits", "ended"
    old_child: bool = False  # a child of a rewound step waits
    rewinds: int = 0
    undoing: bool = False
    to_free: bool = False  # only without rewind_is_one_commit
    looked: tuple[str, str] = ("", "")  # what each operator is about to do, having seen a dead letter
    acts: int = 2
    workers: tuple[Running | None, Running | None] = (None, None)
    faults: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: Rewinds) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        running = state.workers[number]
        if running is None:
            if state.status == DUE:
                claimed = state._replace(status=name, epoch=state.epoch + 1)
                yield f"{name} claims", _put(claimed, number, Running(state.epoch + 1))
            continue
        yield from _run(state, fixes, number, running)
        yield from _fail(state, number, running)
    yield from _operators(state, fixes)
    if state.to_free:
        yield "the signal is freed", state._replace(to_free=False, signal=FREE)
    if state.child == "waits":
        status = DUE if state.status == PARKED else state.status  # its call, which is heeded (flow_children.py)
        yield "the child ends", state._replace(child="ended", status=status)
    if state.old_child:
        yield "a child of the rewound step ends", state._replace(old_child=False)


def _put(state: State, number: int, running: Running | None) -> State:
    one, other = state.workers
    return state._replace(workers=(running, other) if number == 0 else (one, running))


def _owns(state: State, number: int, running: Running) -> bool:
    return state.status == WORKERS[number] and state.epoch == running.epoch


def _run(state: State, fixes: Rewinds, number: int, running: Running) -> Iterator[Step]:
    name, owns = WORKERS[number], _owns(state, number, running)
    if not running.next:
        if owns and not running.lost:
            yield from _decide(state, number, running)
            yield f"the run fails in {name}", _put(state, number, None)._replace(status=DEAD, epoch=state.epoch + 1)
    elif owns or not fixes.steps_are_fenced:
        after = _put(state, number, running._replace(next="", charged_at=0))
        refused = state.charge == "rewound"  # its key is taken: the result is not written, and nobody is told
        stored = after if refused else after._replace(charge="stored", made_at=running.charged_at)
        yield f"{name} stores the charge", stored._replace(told=True)
    else:
        yield f"{name} is told that it has lost the run", _put(state, number, None)


def _decide(state: State, number: int, running: Running) -> Iterator[Step]:
    name = WORKERS[number]
    if state.signal == FREE:
        yield f"{name} takes the signal", state._replace(signal=TAKEN)
    elif state.signal == TAKEN_BY_REWOUND:
        yield f"{name} sees no signal, and parks", _put(_parked(state), number, None)
    elif state.charge != "stored":
        opened = state._replace(charge=state.charge or "open", repeated=state.repeated or state.told)
        charging = running._replace(next=STORE, charged_at=state.rewinds)
        yield f"{name} charges", _put(opened, number, charging)
    elif not state.child:
        yield f"{name} begins a child", state._replace(child="waits")
    elif state.child == "waits":
        yield f"{name} parks", _put(_parked(state), number, None)
    else:
        yield f"{name} ends the run", _put(state, number, None)._replace(status=DONE, epoch=state.epoch + 1)


def _parked(state: State) -> State:
    return state._replace(status=PARKED, epoch=state.epoch + 1)


def _fail(state: State, number: int, running: Running) -> Iterator[Step]:
    name = WORKERS[number]
    if running.lost and not running.next:
        yield f"{name} finds out that its lease is lost", _put(state, number, None)
    if not state.faults or not _owns(state, number, running):
        return
    freed = state._replace(status=DUE, epoch=state.epoch + 1, faults=state.faults - 1)
    yield f"{name} dies", _put(freed, number, None)
    yield f"{name} loses its lease", _put(freed, number, running._replace(lost=True))


def _operators(state: State, fixes: Rewinds) -> Iterator[Step]:
    """Each looks at the run and acts, in one transaction; without the lock the other may act in between."""
    may = state.status == DEAD and not (fixes.undo_is_final and state.undoing)
    for number, act in enumerate(state.looked):
        if act:
            yield f"operator {number} commits: {act}", _act(_look(state, number, ""), fixes, act)
        elif may and state.acts:
            for chosen in (REWIND, REPLAY, UNDO):
                looked = state._replace(acts=state.acts - 1)
                if fixes.acts_lock:
                    yield f"an operator acts: {chosen}", _act(looked, fixes, chosen)
                else:
                    yield f"operator {number} sees a dead letter", _look(looked, number, chosen)


def _look(state: State, number: int, act: str) -> State:
    one, other = state.looked
    return state._replace(looked=(act, other) if number == 0 else (one, act))


def _act(state: State, fixes: Rewinds, act: str) -> State:
    if act == UNDO:
        return state._replace(undoing=True)
    due = state._replace(status=DUE, epoch=state.epoch + 1)
    if act == REPLAY:
        return due
    charge = ("" if fixes.rewound_are_renamed else "rewound") if state.charge else ""
    back = due._replace(rewinds=state.rewinds + 1, charge=charge, told=False, child="")
    if state.child == "waits":
        back = back._replace(old_child=not fixes.children_are_cancelled)
    if state.signal == FREE or (fixes.signals_are_freed and fixes.rewind_is_one_commit):
        return back._replace(signal=FREE)
    return back._replace(signal=TAKEN_BY_REWOUND, to_free=fixes.signals_are_freed)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    if state.undoing and state.status != DEAD:
        return "revived"
    if state.charge == "stored" and state.made_at < state.rewinds:
        return "old result"
    if state.repeated:
        return "repeated"
    if state.status == PARKED and state.child != "waits" and not state.to_free and state.signal != TAKEN:
        return "stuck"
    if state.status == DONE and state.old_child:
        return "orphan"
    return None


def search(fixes: Rewinds) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Rewinds:
    """The protocol with one fix taken out."""
    return replace(Rewinds(), **{name: False})
