"""A wait with a time limit and a signal that races with it, as a small model that is searched to its last state.

The code of the run waits twice for the same signal: first with a time limit, then without one, and ends. A caller sends
two signals, each in a transaction of its own. Two workers claim the run, die, lose their lease, or lose the reply of a
commit and repeat it.

What must hold in every state:
- `both`: the first wait has one end, its time or a signal, and keeps it.
- `passed over`: a signal that was committed before the time was over is no time-out.
- `lost`: a signal that is marked as delivered is the result of the wait that it was delivered to.
- `stuck`: the run is not parked without a limit while a signal is there and nothing would wake it (R2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
DUE, PARKED, DONE = "due", "parked", "done"
NOTHING, WRITTEN, COMMITTED = "nothing", "written", "committed"  # of a signal; then the wait that has it: 1 or 2
FIRST, SECOND = 0, 1


@dataclass(frozen=True)
class Waits:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    looks_once_more: bool = True
    """A wait whose time is over looks for a signal before it is stored as timed out."""
    take_asks_first: bool = True
    """Taking a signal first asks whether the wait has an end: a commit whose reply was lost is repeated."""
    take_is_one_commit: bool = True
    """The signal and the row of its wait are one commit."""
    time_out_is_fenced: bool = True
    """A time-out is stored only by the worker that owns the run, with its epoch."""
    signals_call: bool = True
    """A signal appends a call, and a claim heeds it."""


class Running(NamedTuple):
    """A worker: the epoch of its claim, what it is about to write, and whether its lease is lost."""

    epoch: int
    next: str = ""
    lost: bool = False


class State(NamedTuple):
    """Where everything stands. A row is "", "time", or the number of the signal that it has."""

    status: str = DUE  # or the worker that has it in flight
    epoch: int = 0
    rows: tuple[str, str] = ("", "")
    first_was: str = ""  # ghost: the first end that the first wait had
    over: bool = False  # the time of the first wait
    signals: tuple[str, str] = (NOTHING, NOTHING)
    taken_by: tuple[int, int] = (-1, -1)  # which wait a signal is marked for
    in_time: bool = False  # ghost: a signal was there before the time was over
    call: bool = False
    workers: tuple[Running | None, Running | None] = (None, None)
    faults: int = 2


Step = tuple[str, State]


def steps(state: State, fixes: Waits) -> Iterator[Step]:
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
    yield from _signal(state, fixes)
    if not state.over:
        due = DUE if state.status == PARKED and not state.rows[FIRST] else state.status
        yield "the time of the wait is over", state._replace(over=True, status=due)
    if state.call and state.status in (PARKED, DONE):
        status = DUE if state.status == PARKED else DONE
        yield "a claim heeds the call", state._replace(call=False, status=status)


def _put(state: State, number: int, running: Running | None) -> State:
    one, other = state.workers
    return state._replace(workers=(running, other) if number == 0 else (one, running))


def _owns(state: State, number: int, running: Running) -> bool:
    return state.status == WORKERS[number] and state.epoch == running.epoch


def _run(state: State, fixes: Waits, number: int, running: Running) -> Iterator[Step]:
    name, owns = WORKERS[number], _owns(state, number, running)
    match running.next:
        case "":
            if not running.lost and owns:
                yield from _decide(state, fixes, number, running)
        case "take" | "take, then time out" | "take the second":
            wait = SECOND if running.next == "take the second" else FIRST
            if owns:
                yield from _take(state, fixes, number, running, wait)
            else:
                yield f"{name} is told that it has lost the run", _put(state, number, None)
        case "mark the row":  # only without take_is_one_commit
            wait = FIRST if FIRST in state.taken_by and not state.rows[FIRST] else SECOND
            which = str(state.taken_by.index(wait))
            yield f"{name} stores the signal", _put(_end(state, wait, which), number, running._replace(next=""))
        case "time out":
            if owns or not fixes.time_out_is_fenced:
                yield f"{name} stores the time-out", _put(_end(state, FIRST, "time"), number, running._replace(next=""))
            else:
                yield f"{name} is told that it has lost the run", _put(state, number, None)
        case _:
            parked = state._replace(status=PARKED, epoch=state.epoch + 1)
            if running.next == "park with a limit" and state.over:
                parked = parked._replace(status=DUE)
            yield f"{name} parks" if owns else f"{name} is told", _put(parked if owns else state, number, None)


def _decide(state: State, fixes: Waits, number: int, running: Running) -> Iterator[Step]:
    """What comes next by the rows: the first wait, the second, or the end."""
    name, (first, second) = WORKERS[number], state.rows
    if not first:
        over = "take, then time out" if fixes.looks_once_more else "time out"
        then = over if state.over else "take"
        yield f"{name} comes to the first wait", _put(state, number, running._replace(next=then))
    elif not second:
        yield f"{name} comes to the second wait", _put(state, number, running._replace(next="take the second"))
    else:
        yield f"{name} ends the run", _put(state, number, None)._replace(status=DONE, epoch=state.epoch + 1)


def _take(state: State, fixes: Waits, number: int, running: Running, wait: int) -> Iterator[Step]:
    """One transaction: the oldest signal that no wait has, and the row of this wait; or the row that says it waits."""
    name = WORKERS[number]
    if fixes.take_asks_first and state.rows[wait]:
        yield f"{name} finds the signal stored", _put(state, number, running._replace(next=""))
        return
    free = [which for which in (0, 1) if state.signals[which] == COMMITTED and state.taken_by[which] < 0]
    if not free:
        then = {"take": "park with a limit", "take, then time out": "time out"}.get(running.next, "park")
        yield f"{name} sees no signal", _put(state, number, running._replace(next=then))
        return
    taken_by = tuple(wait if which == free[0] else state.taken_by[which] for which in (0, 1))
    marked = state._replace(taken_by=(taken_by[0], taken_by[1]))
    if not fixes.take_is_one_commit:
        yield f"{name} marks the signal", _put(marked, number, running._replace(next="mark the row"))
        return
    done = marked if state.rows[wait] else _end(marked, wait, str(free[0]))  # a stored end is not overwritten
    yield f"{name} takes the signal", _put(done, number, running._replace(next=""))
    if state.faults:  # the reply of the commit is lost: it is repeated
        yield f"{name} takes the signal, and hears nothing", done._replace(faults=state.faults - 1)


def _end(state: State, wait: int, end: str) -> State:
    first, second = state.rows
    rows = (end, second) if wait == FIRST else (first, end)
    return state._replace(rows=rows, first_was=state.first_was or rows[FIRST])


def _fail(state: State, number: int, running: Running) -> Iterator[Step]:
    name = WORKERS[number]
    if running.lost and not running.next:
        yield f"{name} finds out that its lease is lost", _put(state, number, None)
    if not state.faults or not _owns(state, number, running):
        return
    freed = state._replace(status=DUE, epoch=state.epoch + 1, faults=state.faults - 1)
    yield f"{name} dies", _put(freed, number, None)
    yield f"{name} loses its lease", _put(freed, number, running._replace(lost=True))


def _signal(state: State, fixes: Waits) -> Iterator[Step]:
    for which, said in enumerate(state.signals):
        if said == NOTHING and (which == 0 or state.signals[0] != NOTHING):
            written = _say(state, which, WRITTEN)
            if not fixes.signals_call and state.status == PARKED:
                written = written._replace(status=DUE, epoch=state.epoch + 1)
            yield f"a caller writes signal {which}", written
        elif said == WRITTEN:
            committed = _say(state, which, COMMITTED)._replace(call=fixes.signals_call or state.call)
            in_time = state.in_time or (not state.over and not state.rows[FIRST])
            yield f"a caller commits signal {which}", committed._replace(in_time=in_time)


def _say(state: State, which: int, said: str) -> State:
    one, other = state.signals
    return state._replace(signals=(said, other) if which == 0 else (one, said))


def wrong(state: State) -> str | None:
    """What is wrong here."""
    if state.rows[FIRST] != state.first_was:
        return "both"
    if state.rows[FIRST] == "time" and state.in_time:
        return "passed over"
    idle = state.workers == (None, None)
    for which, wait in enumerate(state.taken_by):
        if wait >= 0 and idle and state.rows[wait] != str(which):
            return "lost"
    free = any(said == COMMITTED and by < 0 for said, by in zip(state.signals, state.taken_by, strict=True))
    if state.status == PARKED and state.rows[FIRST] and free and not state.call:
        return "stuck"
    return None


def search(fixes: Waits) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Waits:
    """The protocol with one fix taken out."""
    return replace(Waits(), **{name: False})
