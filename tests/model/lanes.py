"""One lane and everything that may happen to it, as a small model that is searched to its last state (I10).

Three messages of one key are published, by publishers that hold the lock of the key until they commit. Two workers
claim the lane and its first rows, settle them in any way, and die. An operator cancels, and replays dead letters (the
destination skips them). A settle that finds the lane empty drops it, in three statements: it looks, it tries the lock
of the key, it looks again and deletes. In between others may commit; the row of the lane is locked meanwhile.

Two things must hold in every state: a delivery in flight belongs to the owner of its lane, so that no two workers run
deliveries of one key (`shared`), and a delivery that waits has a lane row, else no claim finds it (`stranded`).

It is smaller than the code: a row lock is not awaited, a reclaim is one step, and no lane is parked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
PUBLISHER, OTHER = "publisher", "other publisher"
UNBORN, WRITTEN, WAITING, DEAD, DONE = "unborn", "written", "waiting", "dead", "done"
GONE: Final = "gone"
FREE: Final = ""


@dataclass(frozen=True)
class Lanes:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    publishers_lock: bool = True
    """Publishers hold the lock of the key from before they draw an id until they commit."""
    claims_in_order: bool = True
    """A claim takes the first rows, and none behind a row that it may not take."""
    touched_head_looks: bool = True
    """A settle releases a lane whose head was claimed or replayed before only if nothing of it is in flight."""
    drop_locks: bool = True
    """An empty lane is dropped only under the lock of the key."""
    drop_looks_again: bool = True
    """Whether it is empty is read again once the lock is held."""


class Row(NamedTuple):
    """A delivery. `status` is one of the words above, or the worker that has it in flight."""

    status: str = UNBORN
    touched: bool = False  # epoch > 0


class State(NamedTuple):
    """Where everything stands."""

    rows: tuple[Row, ...] = (Row(), Row(), Row())
    lane: str = GONE  # its owner; FREE; GONE: it has no row
    lock: str = FREE  # who holds the lock of the key
    publishers: tuple[int, int] = (-1, -1)  # the row each has written and not committed
    settling: str = FREE  # the worker whose settle found the lane empty, and has locked its row
    deaths: int = 1
    acts: int = 2


Step = tuple[str, State]


def steps(state: State, fixes: Lanes) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate((PUBLISHER, OTHER)):
        yield from _publish(state, fixes, number, name)
    for worker in WORKERS:
        if state.settling == FREE:
            yield from _claim(state, fixes, worker)
            yield from _settle(state, fixes, worker)
            yield from _die(state, worker)
        elif state.settling == worker:
            yield from _drop(state, fixes, worker)
    if state.settling == FREE and state.acts:
        yield from _operate(state)


def _with(state: State, place: int, status: str, *, touched: bool = True) -> State:
    return state._replace(rows=(*state.rows[:place], Row(status, touched), *state.rows[place + 1 :]))


def _publish(state: State, fixes: Lanes, number: int, name: str) -> Iterator[Step]:
    """A publisher locks the key, draws the next id, and later commits. Its lane row stays if there is one already."""
    wrote = state.publishers[number]
    if wrote < 0:
        unborn = [place for place, row in enumerate(state.rows) if row.status == UNBORN]
        if not unborn or (fixes.publishers_lock and state.lock != FREE):
            return
        lock = name if fixes.publishers_lock else state.lock
        written = _with(state, unborn[0], WRITTEN, touched=False)
        # Whether the lane has a row is seen now: its own insert becomes visible with the commit.
        at = unborn[0] + (10 if state.lane == GONE else 0)
        yield f"the {name} writes {unborn[0]}", written._replace(lock=lock, publishers=_put(state, number, at))
        return
    lane = FREE if wrote >= 10 and state.lane == GONE else state.lane
    lock = FREE if state.lock == name else state.lock
    committed = _with(state, wrote % 10, WAITING, touched=False)
    yield (
        f"the {name} commits {wrote % 10}",
        committed._replace(lane=lane, lock=lock, publishers=_put(state, number, -1)),
    )


def _put(state: State, number: int, value: int) -> tuple[int, int]:
    return (value, state.publishers[1]) if number == 0 else (state.publishers[0], value)


def _visible(state: State) -> list[int]:
    return [place for place, row in enumerate(state.rows) if row.status in (WAITING, *WORKERS)]


def _claim(state: State, fixes: Lanes, worker: str) -> Iterator[Step]:
    """Takes the lane and its first rows, one or two. Any row may be one that may not run yet, or is locked."""
    if state.lane != FREE:
        return
    visible = _visible(state)
    for most in (1, 2):
        for blocked in (None, *visible):
            able = [place for place in visible if place != blocked and state.rows[place].status == WAITING]
            if fixes.claims_in_order:
                able = [place for mine, place in zip(able, visible, strict=False) if mine == place]
            taken = state._replace(lane=worker)
            for place in able[:most]:
                taken = _with(taken, place, worker)
            if able:
                yield f"{worker} claims {' and '.join(map(str, able[:most]))}", taken
    if not _visible(state):
        yield f"{worker} claims an empty lane", state._replace(lane=worker, settling=worker)


def _settle(state: State, fixes: Lanes, worker: str) -> Iterator[Step]:
    """Settles one delivery in flight, or all of them, and then looks at the lane."""
    mine = [place for place, row in enumerate(state.rows) if row.status == worker]
    for outcome in (DONE, WAITING, DEAD):
        for some in {tuple(mine[:1]), tuple(mine), tuple(mine[1:])} - {()}:
            after = state
            for place in some:
                after = _with(after, place, outcome)
            named = " and ".join(map(str, some))
            yield f"{worker} settles {named} as {outcome}", _look(after, fixes, worker)


def _look(state: State, fixes: Lanes, worker: str) -> State:
    """The statement settle_lanes: releases the lane, keeps it, or leaves it to be dropped."""
    if state.lane != worker:
        return state
    if not _visible(state):
        return state._replace(settling=worker)
    return _release(state, fixes, worker)


def _release(state: State, fixes: Lanes, worker: str) -> State:
    """A head that was never touched has nothing in flight behind it. Behind another one, it is read."""
    visible = _visible(state)
    is_touched = bool(visible) and state.rows[visible[0]].touched
    flying = any(row.status == worker for row in state.rows)
    busy = is_touched and flying and fixes.touched_head_looks
    return state._replace(lane=worker if busy else FREE, settling=FREE)


def _drop(state: State, fixes: Lanes, worker: str) -> Iterator[Step]:
    """Tries the lock of the key; not had: the lane is released. Had: it is dropped, if it is still empty."""
    if state.lock == worker:
        if _visible(state) and fixes.drop_looks_again:
            yield f"{worker} finds the lane filled", _release(state, fixes, worker)._replace(lock=FREE)
        else:
            yield f"{worker} drops the lane", state._replace(lane=GONE, lock=FREE, settling=FREE)
    elif state.lock == FREE or not fixes.drop_locks:
        lock = worker if state.lock == FREE else state.lock
        if lock == worker:
            yield f"{worker} has the lock", state._replace(lock=worker)
        else:
            yield f"{worker} drops the lane without the lock", state._replace(lane=GONE, settling=FREE)
    else:
        yield f"{worker} finds the lock held", _release(state, fixes, worker)


def _die(state: State, worker: str) -> Iterator[Step]:
    if state.deaths and state.lane == worker:
        after = state
        for place, row in enumerate(state.rows):
            if row.status == worker:
                after = _with(after, place, WAITING)
        yield f"{worker} dies and its deliveries are freed", after._replace(lane=FREE, deaths=state.deaths - 1)


def _operate(state: State) -> Iterator[Step]:
    """An operator cancels what waits, and replays dead letters under the lock of the key, which is not awaited."""
    for place, row in enumerate(state.rows):
        if row.status == WAITING:
            yield f"{place} is cancelled", _with(state, place, DEAD)._replace(acts=state.acts - 1)
        if row.status == DEAD and state.lock == FREE:
            lane = FREE if state.lane == GONE else state.lane
            yield f"{place} is replayed", _with(state, place, WAITING)._replace(acts=state.acts - 1, lane=lane)


def shared(state: State) -> bool:
    """Whether a delivery is in flight at a worker that does not own the lane."""
    return any(row.status in WORKERS and row.status != state.lane for row in state.rows)


def stranded(state: State) -> bool:
    """Whether a delivery waits and the lane has no row."""
    return state.lane == GONE and any(row.status == WAITING for row in state.rows)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    return "shared" if shared(state) else "stranded" if stranded(state) else None


def search(fixes: Lanes) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Lanes:
    """The protocol with one fix taken out."""
    return replace(Lanes(), **{name: False})
