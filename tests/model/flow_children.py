"""The children of one run, as a small model that is searched to its last state.

The run begins two children, waits for them (all of them, or the first that succeeds), stores how they ended, acts by
it, and ends. Workers of the run die. A child succeeds or becomes a dead letter, in a transaction that has a moment
between its look and its commit; an operator replays a dead one, or gives the run up, whose undo then cancels the
children and waits for them. Retention removes the history of a child that has succeeded while the run still waits for
the other, in two steps: it copies the result into the step of the run, then removes it. The run reads in two steps.

What must hold in every state:
- `stuck`: no run is parked while enough of its children have ended and nothing would wake it (R2).
- `twice`: the children are begun once (R11).
- `changed`: every attempt of the run acts by the same ends, whatever is replayed later (R11).
- `forgotten`: the run never takes a child that has succeeded for one that was removed (R11).
- `late`: no child does anything once the run has been undone (R5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

DUE, PARKED, DONE, GIVEN_UP, UNDONE = "due", "parked", "done", "given up", "undone"
RUNNING = "running"
WAITS, RUNS, WELL, DEAD, CANCELLED = "waits", "runs", "well", "dead", "cancelled"  # of a child
GONE: Final = "gone"  # as a run sees a child without history
ENDED: Final = (WELL, DEAD, CANCELLED, GONE)

Mode = Literal["gather", "race"]


@dataclass(frozen=True)
class Children:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    begun_in_one_commit: bool = True
    """The children and the open row of their step are one commit."""
    ends_call: bool = True
    """An end appends a call, and a claim heeds it; it does not look at the run itself, which may park meanwhile."""
    calls_stay: bool = True
    """A call is removed only when its run is parked or over."""
    replayed_ends_call: bool = True
    """The end of a child that was replayed calls, too, although its batch is complete already."""
    first_end_calls: bool = True
    """In a race every end calls, not the last one."""
    stored_before_it_acts: bool = True
    """How the children ended is stored before the run acts by it."""
    kept_before_removed: bool = True
    """A result is copied into the step that waits for it before its history is removed."""
    kept_read_last: bool = True
    """The run reads the histories of its children first, and then what its step has kept of them."""
    undo_waits: bool = True
    """The undo cancels the children, and waits until none of them runs."""


class State(NamedTuple):
    """Where everything stands."""

    status: str = DUE
    next: str = ""  # what the worker of the run is about to do
    row: str = ""  # "", "open", or the ends that are stored
    children: tuple[str, str] | None = None
    begun: int = 0
    ending: int | None = None  # a child whose end is looked up and not committed yet
    ends_as: str = ""
    saw_parked: bool = False  # what that transaction saw of the run
    open: int = 2  # of the batch
    complete: bool = False  # the batch was: it is counted once
    again: tuple[bool, bool] = (False, False)  # ended before, and replayed
    call: bool = False
    kept: tuple[bool, bool] = (False, False)  # the step has a copy of the result
    removed: tuple[bool, bool] = (False, False)  # the history of the child
    removing: bool = False  # what prune has copied
    seen: tuple[str, str] | None = None  # what the worker of the run has read first
    acted: tuple[str, ...] = ()  # ghost: the ends by which the run has acted
    late: bool = False
    deaths: int = 1
    replays: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: Children, mode: Mode) -> Iterator[Step]:
    """Everything that may happen next."""
    yield from _run(state, fixes, mode)
    yield from _child(state, fixes, mode)
    yield from _operator(state, fixes)
    yield from _prune(state, fixes)
    if state.call and (state.status != RUNNING or not fixes.calls_stay):
        yield (
            "a claim heeds the call",
            state._replace(call=False, status=DUE if state.status == PARKED else state.status),
        )


def _enough(children: tuple[str, str] | None, mode: Mode) -> str:
    """The ends of the children, as the run would store them; empty: not enough of them have ended."""
    if children is None:
        return ""
    if mode == "race" and WELL in children:
        return f"{children.index(WELL)} was first"
    return " ".join(children) if all(child in ENDED for child in children) else ""


def _run(state: State, fixes: Children, mode: Mode) -> Iterator[Step]:
    if state.status == DUE:
        yield "a worker claims the run", state._replace(status=RUNNING, next="", seen=None)
    if state.status != RUNNING:
        return
    if state.deaths:
        yield "the worker of the run dies", state._replace(status=DUE, next="", deaths=state.deaths - 1)
    match state.next:
        case "":
            yield from _decide(state, fixes, mode)
        case "write the row":
            yield "the row of the children is written", state._replace(row="open", next="")
        case "park":
            yield "the run parks", state._replace(status=PARKED, next="")
        case "end":
            yield "the run ends", state._replace(status=DONE, next="")
        case ends:
            acted = state.acted if ends in state.acted else (*state.acted, ends)
            yield "the run acts by how they ended", state._replace(acted=acted, next="end")


def _decide(state: State, fixes: Children, mode: Mode) -> Iterator[Step]:
    if not state.row:
        begun = state._replace(children=(WAITS, WAITS), begun=state.begun + 1, open=2, complete=False)
        if fixes.begun_in_one_commit:
            yield "the children are begun", begun._replace(row="open")
        else:
            yield "the children are published", begun._replace(next="write the row")
    elif state.row != "open":
        yield "the run finds their ends stored", state._replace(next=state.row)
    elif state.seen is None:
        seen = _histories(state) if fixes.kept_read_last else _kept(state)
        yield "the run reads how they ended", state._replace(seen=seen)
    else:
        yield from _look_again(state._replace(seen=None), state.seen, fixes, mode)


def _histories(state: State) -> tuple[str, str]:
    assert state.children is not None
    one, other = (GONE if removed else child for child, removed in zip(state.children, state.removed, strict=True))
    return one, other


def _kept(state: State) -> tuple[str, str]:
    one, other = (WELL if kept else "" for kept in state.kept)
    return one, other


def _look_again(state: State, seen: tuple[str, str], fixes: Children, mode: Mode) -> Iterator[Step]:
    """The second half of reading. What is kept counts before the history."""
    histories, kept = (seen, _kept(state)) if fixes.kept_read_last else (_histories(state), seen)
    if ends := _enough((kept[0] or histories[0], kept[1] or histories[1]), mode):
        cancelled = _cancel(state) if mode == "race" else state
        row = ends if fixes.stored_before_it_acts else "open"
        yield "the run stores how they ended", cancelled._replace(row=row, next=ends)
    else:
        yield "the run sees that they have not ended", state._replace(next="park")


def _cancel(state: State) -> State:
    """Children that wait are cancelled at once; one that runs goes on until its next boundary."""
    assert state.children is not None
    one, other = (CANCELLED if child == WAITS else child for child in state.children)
    return state._replace(children=(one, other))


def _child(state: State, fixes: Children, mode: Mode) -> Iterator[Step]:
    if state.children is None:
        return
    if state.ending is not None:
        yield "the end of the child is committed", _commit_end(state, fixes, mode)
    for number, child in enumerate(state.children):
        if child == WAITS:
            yield f"child {number} starts", _set(state, number, RUNS)
        elif child == RUNS and state.ending is None:
            for how in (WELL, DEAD):
                yield (
                    f"child {number} ends: {how}",
                    state._replace(ending=number, ends_as=how, saw_parked=state.status == PARKED),
                )
        elif child == DEAD and state.replays and state.status != UNDONE:
            again = (True, state.again[1]) if number == 0 else (state.again[0], True)
            replayed = _set(state, number, WAITS)._replace(replays=state.replays - 1, again=again)
            yield f"an operator replays child {number}", replayed


def _set(state: State, number: int, how: str) -> State:
    assert state.children is not None
    one, other = state.children
    return state._replace(children=(how, other) if number == 0 else (one, how))


def _commit_end(state: State, fixes: Children, mode: Mode) -> State:
    """One transaction: the child has ended, its batch is counted, and the run is called if it waits for this."""
    assert state.ending is not None
    again = state.again[state.ending]
    ended = _set(state, state.ending, state.ends_as)._replace(ending=None, ends_as="", saw_parked=False)
    ended = ended._replace(late=state.late or state.status == UNDONE)
    if not again:
        ended = ended._replace(open=max(state.open - 1, 0))
    tells = (mode == "race" and fixes.first_end_calls) or (again and fixes.replayed_ends_call)
    if ended.open == 0 and not state.complete:
        ended, tells = ended._replace(complete=True), True
    if not tells or state.row != "open":
        return ended
    if fixes.ends_call:
        return ended._replace(call=True)
    return ended._replace(status=DUE) if state.saw_parked and state.status == PARKED else ended


def _prune(state: State, fixes: Children) -> Iterator[Step]:
    """Only of a child that has succeeded, and only for a while: a dead letter has no retention."""
    if state.children is None or state.row != "open":
        return
    well = (state.children[0] == WELL, state.children[1] == WELL)
    if state.removing:
        yield "prune removes the histories", state._replace(removed=state.kept, removing=False)
    elif not fixes.kept_before_removed and well != state.removed:
        yield "prune removes the histories", state._replace(removed=well)
    elif fixes.kept_before_removed and well != state.kept:
        yield "prune copies what has succeeded", state._replace(kept=well, removing=True)


def _operator(state: State, fixes: Children) -> Iterator[Step]:
    if state.status in (DUE, PARKED):
        yield "the run is given up", state._replace(status=GIVEN_UP)
    elif state.status == GIVEN_UP:
        cancelled = state if state.children is None or state.row != "open" else _cancel(state)
        if not fixes.undo_waits or state.row != "open" or RUNS not in (cancelled.children or ()):
            yield "the undo is over", cancelled._replace(status=UNDONE)


def wrong(state: State, mode: Mode) -> str | None:
    """What is wrong here."""
    if state.status == PARKED and state.row == "open" and not state.call and _enough(state.children, mode):
        return "stuck"
    if state.begun > 1:
        return "twice"
    if any(GONE in ends for ends in state.acted):
        return "forgotten"
    if len(state.acted) > 1:
        return "changed"
    # Children whose ends are stored are no longer the run's: a loser of a race may still be at its last step.
    if state.late and state.row == "open":
        return "late"
    return None


def search(fixes: Children, mode: Mode) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes, mode=mode), partial(wrong, mode=mode))


def without(name: str) -> Children:
    """The protocol with one fix taken out."""
    return replace(Children(), **{name: False})
