"""A run that holds its lane while it waits, as a small model that is searched to its last state (R7).

Two runs of one key. The first waits for a signal, with a time limit or without one, and ends; the second only ends. Two
workers claim the lane with its first rows, run them in turn, settle, and die. A caller sends the signal; a claim heeds
the call; an operator cancels the run that waits. A settle and whatever wakes or cancels a run have two moments each,
because others may commit between the locks of deliveries and that of the lane.

What must hold in every state:
- `overtaken`: the second run has not begun while the first has not ended.
- `stuck`: no lane that nobody owns waits for a later time than its first run, and no run is parked while its signal is
  there and nothing would wake it (R2).

It is smaller than the code: an end is settled before the next run begins (decision 6 says what a kill in between
repeats), there are no stale workers (`flows.py`), and no lane is dropped (`lanes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
WAITING, ENDED = "waiting", "ended"  # of a run; or the worker that has it in flight
NOW, LIMIT, NEVER = "now", "limit", "never"  # when a run, or its lane, is due
FREE: Final = ""
HEED, CANCEL, REFRESH = "heed", "cancel", "refresh"
STARTS, RUNS, ENDS, GIVES_BACK = "starts", "runs", "ends", "gives back"


@dataclass(frozen=True)
class Lanes:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    claims_in_order: bool = True
    """A claim takes no run behind one that it may not take, be it parked or locked."""
    parked_gives_back: bool = True
    """A worker whose run parks gives back the runs of the key that it has claimed behind it."""
    waking_refreshes: bool = True
    """Whoever wakes a run makes its lane ready."""
    woken_in_one_commit: bool = True
    """The run and its lane are one commit."""
    ends_refresh: bool = True
    """Whoever cancels a run that waits makes its lane ready for the next."""
    looks_under_lock: bool = True
    """A settle reads when the lane is due next once it has locked the lane."""


class Run(NamedTuple):
    """A run of the key."""

    status: str = WAITING
    due: str = NOW
    begun: bool = False  # ghost


class Holding(NamedTuple):
    """A worker that owns the lane: the runs it has claimed, what it does with the first, and what it has read."""

    runs: tuple[int, ...]
    stage: str = STARTS  # or when the run is to wake, once it parks
    settling: bool = False
    seen: str = ""  # only without looks_under_lock


class State(NamedTuple):
    """Where everything stands."""

    runs: tuple[Run, Run] = (Run(), Run())
    owner: str = FREE
    ready: str = NOW  # when the lane is due
    lock: str = FREE  # who has locked the lane
    change: str = ""  # the first run is locked, and about to be woken or cancelled
    signal: bool = False
    call: bool = False
    over: bool = False  # the time limit
    workers: tuple[Holding | None, Holding | None] = (None, None)
    deaths: int = 2
    cancels: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: Lanes) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        if (holding := state.workers[number]) is None:
            yield from _claim(state, fixes, number)
            continue
        yield from _settle(state, fixes, number, holding) if holding.settling else _run(state, fixes, number, holding)
        if state.deaths:
            yield f"{name} dies and its runs are freed", _free(state, number, holding)
    if not state.over:
        yield "the time limit is over", state._replace(over=True)
    if not state.signal:
        yield "a caller commits the signal", state._replace(signal=True, call=True)
    yield from _change(state, fixes)


def _put(state: State, number: int, holding: Holding | None) -> State:
    one, other = state.workers
    return state._replace(workers=(holding, other) if number == 0 else (one, holding))


def _with(state: State, place: int, **values: str | bool) -> State:
    first, second = state.runs
    changed = state.runs[place]._replace(**values)
    return state._replace(runs=(changed, second) if place == 0 else (first, changed))


def _is_due(state: State, time: str) -> bool:
    return time == NOW or (time == LIMIT and state.over)


def _look(state: State) -> str:
    """When the lane is due by its first run that has not ended."""
    return next((run.due for run in state.runs if run.status != ENDED), NOW)


def _claim(state: State, fixes: Lanes, number: int) -> Iterator[Step]:
    """Takes the lane and its first runs, one or both, or gives it back at once. What another has locked is blocked."""
    name = WORKERS[number]
    if state.owner != FREE or state.lock != FREE or not _is_due(state, state.ready):
        return
    waiting = [place for place, run in enumerate(state.runs) if run.status == WAITING]
    able = [place for place in waiting if _is_due(state, state.runs[place].due) and not (state.change and place == 0)]
    if fixes.claims_in_order:
        able = [mine for mine, place in zip(able, waiting, strict=False) if mine == place]
    if not able:
        yield f"{name} finds nothing to claim", state._replace(ready=_look(state))
    for most in range(1, len(able) + 1):
        taken = state._replace(owner=name)
        for place in able[:most]:
            taken = _with(taken, place, status=name, due=NOW)
        yield f"{name} claims {' and '.join(map(str, able[:most]))}", _put(taken, number, Holding(tuple(able[:most])))


def _run(state: State, fixes: Lanes, number: int, holding: Holding) -> Iterator[Step]:
    """Starts a run, lets it look for its signal, and begins to settle what it came to."""
    name, place = WORKERS[number], holding.runs[0]
    if holding.stage == STARTS:
        yield f"{name} starts {place}", _put(_with(state, place, begun=True), number, holding._replace(stage=RUNS))
    elif holding.stage == RUNS:
        over = place == 1 or state.signal or state.over
        for stage in (ENDS,) if over else (LIMIT, NEVER):
            yield f"{name} sees that {place} {stage}", _put(state, number, holding._replace(stage=stage))
    elif not fixes.looks_under_lock:
        seen = _look(_settled(state, holding))
        yield f"{name} looks at the lane", _put(state, number, holding._replace(settling=True, seen=seen))
    elif state.lock == FREE:
        locked = _put(state, number, holding._replace(settling=True))
        yield f"{name} locks the lane", locked._replace(lock=name)


def _settled(state: State, holding: Holding) -> State:
    """The runs as the worker's settle, or its release, leaves them."""
    if holding.stage == GIVES_BACK:
        for place in holding.runs:
            state = _with(state, place, status=WAITING)
        return state
    if holding.stage == ENDS:
        return _with(state, holding.runs[0], status=ENDED)
    return _with(state, holding.runs[0], status=WAITING, due=holding.stage)


def _settle(state: State, fixes: Lanes, number: int, holding: Holding) -> Iterator[Step]:
    """Commits what the run came to, and gives back the lane unless another run of it is in flight."""
    name, rest = WORKERS[number], holding.runs[1:]
    if not fixes.looks_under_lock and state.lock != FREE:
        return
    after = _settled(state, holding)
    parks = holding.stage in (LIMIT, NEVER)
    if holding.stage == GIVES_BACK or not rest:
        left, owner = None, FREE
    else:
        stage = GIVES_BACK if parks and fixes.parked_gives_back else STARTS
        left, owner = Holding(rest, stage), name
    committed = after._replace(owner=owner, ready=holding.seen or _look(after), lock=FREE)
    yield f"{name} settles: {holding.runs[0]} {holding.stage}", _put(committed, number, left)


def _free(state: State, number: int, holding: Holding) -> State:
    for place in holding.runs:
        state = _with(state, place, status=WAITING, due=NOW)
    lock = FREE if state.lock == WORKERS[number] else state.lock
    return _put(state._replace(owner=FREE, ready=NOW, lock=lock, deaths=state.deaths - 1), number, None)


def _change(state: State, fixes: Lanes) -> Iterator[Step]:
    """A claim heeds the call, or an operator cancels: locks the first run, and then the lane."""
    match state.change:
        case "":
            yield from _begin_change(state)
        case "heed":
            yield from _wake(state, fixes)
        case "refresh":  # only without woken_in_one_commit
            if state.lock == FREE:
                yield "the lane is ready", state._replace(ready=_look(state), change="")
            if state.deaths:
                yield "whoever woke the run dies", state._replace(change="", deaths=state.deaths - 1)
        case _:
            if state.lock == FREE or not fixes.ends_refresh:
                ended = _with(state, 0, status=ENDED)._replace(change="")
                ready = _look(ended) if fixes.ends_refresh else state.ready
                yield "the run is cancelled", ended._replace(ready=ready)


def _begin_change(state: State) -> Iterator[Step]:
    first = state.runs[0]
    if state.call and first.status == WAITING and not _is_due(state, first.due):
        yield "a claim locks the run to wake it", state._replace(change=HEED)
    elif state.call and first.status in (WAITING, ENDED):
        yield "a claim removes the call", state._replace(call=False)
    if state.cancels and first.status == WAITING:
        yield "an operator locks the run", state._replace(change=CANCEL, cancels=state.cancels - 1)


def _wake(state: State, fixes: Lanes) -> Iterator[Step]:
    woken = _with(state, 0, due=NOW)._replace(call=False, change="")
    if not fixes.woken_in_one_commit:
        yield "the run is woken, and its lane is not yet ready", woken._replace(change=REFRESH)
    elif state.lock == FREE or not fixes.waking_refreshes:
        ready = _look(woken) if fixes.waking_refreshes else state.ready
        yield "the run is woken", woken._replace(ready=ready)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    first, second = state.runs
    if second.begun and first.status != ENDED:
        return "overtaken"
    quiet = state.lock == FREE and not state.change
    late = _is_due(state, _look(state)) and not _is_due(state, state.ready)
    unheard = first.status == WAITING and first.due == NEVER and state.signal and not state.call
    if quiet and ((state.owner == FREE and late) or unheard):
        return "stuck"
    return None


def search(fixes: Lanes) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Lanes:
    """The protocol with one fix taken out."""
    return replace(Lanes(), **{name: False})
