"""A lane whose deliveries are claimed by list, as a small model that is searched to its last state (I3, I10).

Two deliveries of one key wait. Two workers take the lane, in the moments of its two statements: the first sees the lane
free and then locks its row, the second looks at the deliveries, locks and lists them, or takes them by their rows. They
settle one or both, and look at the lane. They write out old lists, lose their lease, and go on until a write tells them
so. Reclaim leaves what an operator has locked. An operator cancels, as in `claim_lists.py`, or goes away.

What must hold in every state:
- `shared`: a worker that has its lease and runs deliveries of the key owns the lane, so no two do (I10).
- `overtaken`: no delivery is claimed before the one ahead of it is over, or claimed with it (I10).
- `stolen`: no worker settles a delivery that it does not own (I3).
- `broken word`: what was cancelled before it began is never run (H22).
- `kept`: no worker owns a lane of which it has nothing in flight (I1).
- `forgotten`: whatever is not over goes on, without an operator (I1).

There is no second look at lists here, which claims without a lane need: the second statement begins when the row of the
lane is locked, and whatever was listed in it before was committed before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
PLACES: Final = (0, 1)
NOBODY: Final = ""
OPERATOR: Final = "operator"
WAITING, SENDING, CANCELLED, DONE = "waiting", "sending", "cancelled", "done"
LOOKED, LOCKED, PICKED, RUNS = "looked", "locked", "picked", "runs"
FREE, LISTED = "free", "listed"


@dataclass(frozen=True)
class LaneLists:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    deliveries_after_lane: bool = True
    """Deliveries and lists are looked at by a statement that begins when the row of the lane is locked."""
    lists_block: bool = True
    """A delivery in the list of anybody blocks the rest of its lane."""
    rows_are_locked: bool = True
    """A claim by list locks the rows that it names, until it commits."""
    heads_are_looked_up: bool = True
    """A settle keeps a lane whose head is in a list of its worker."""
    touched_head_looks: bool = True
    """Behind a head that was claimed or freed before, a settle looks for anything in flight, listed ones too."""
    written_out_is_touched: bool = True
    """A head that was written out counts as claimed before, though its epoch is 0."""
    settles_are_fenced: bool = True
    """A settle by list needs the list of its worker to be there, and the epoch to be the one that was listed."""


class Row(NamedTuple):
    """A delivery."""

    status: str = WAITING
    owner: str = NOBODY
    epoch: int = 0
    lock: str = NOBODY
    asked_to_stop: bool = False

    @property
    def untouched(self) -> bool:
        """Whether a list can name it."""
        return self.status == WAITING and self.epoch == 0


Rows = tuple[Row, Row]


class Worker(NamedTuple):
    """What a worker does, what it runs, with which epochs, and whether it still has its lease."""

    doing: str = NOBODY
    has: tuple[int, ...] = ()
    by_list: tuple[int, ...] = ()
    epochs: tuple[int, int] = (0, 0)
    alive: bool = True
    saw: tuple[int, ...] | None = None  # deliveries that its first statement saw free


class State(NamedTuple):
    """Where everything stands."""

    rows: Rows = (Row(), Row())
    lane: str = NOBODY  # its owner
    lane_lock: str = NOBODY
    lists: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # what the list of each worker names
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    acting: tuple[str, int] = (NOBODY, 0)  # what the operator has seen of which delivery
    stolen: bool = False
    overtaken: bool = False
    ran_cancelled: bool = False
    faults: int = 1
    retries: int = 1
    acts: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: LaneLists) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        worker = state.workers[number]
        if worker.doing == NOBODY:
            yield from _begin(state, fixes, number, name, worker)
        elif worker.doing == RUNS:
            yield from _settle(state, fixes, number, name, worker)
            yield from _write_out_old(state, number, name, worker)
        else:
            yield from _claim(state, fixes, number, name, worker)
        yield from _lose(state, number, name, worker)
    yield from _reclaim(state)
    yield from _cancel(state)


def _put(state: State, number: int, worker: Worker) -> State:
    one, other = state.workers
    return state._replace(workers=(worker, other) if number == 0 else (one, worker))


def _row(state: State, place: int, row: Row) -> State:
    one, other = state.rows
    return state._replace(rows=(row, other) if place == 0 else (one, row))


def _listing(state: State, number: int, places: tuple[int, ...]) -> State:
    one, other = state.lists
    return state._replace(lists=(places, other) if number == 0 else (one, places))


def _is_over(row: Row) -> bool:
    return row.status in (DONE, CANCELLED)


def _free(state: State, fixes: LaneLists) -> tuple[int, ...]:
    """The deliveries that may be taken, in order, up to the first that may not."""
    taken: list[int] = []
    for place in PLACES:
        row = state.rows[place]
        if _is_over(row):
            continue
        listed = fixes.lists_block and row.untouched and any(place in named for named in state.lists)
        if row.status != WAITING or row.lock != NOBODY or listed:
            break
        taken.append(place)
    return tuple(taken)


def _still_free(state: State, saw: tuple[int, ...]) -> tuple[int, ...]:
    """What a lock shows of deliveries that a snapshot saw free: whether they have changed, not who lists them."""
    for place in saw:
        row = state.rows[place]
        if row.status != WAITING or row.lock != NOBODY:
            return saw[: saw.index(place)]
    return saw


def _begin(state: State, fixes: LaneLists, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """The first statement takes its snapshot: it sees a lane that is free."""
    if worker.alive and state.lane == NOBODY and any(not _is_over(row) for row in state.rows):
        looked = Worker(LOOKED, saw=None if fixes.deliveries_after_lane else _free(state, fixes))
        yield f"{name} sees the lane free", _put(state, number, looked)


def _claim(state: State, fixes: LaneLists, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """The rest of the two statements: the lock of the lane, the look at its deliveries, the commit."""
    if worker.doing == LOOKED:
        if state.lane_lock == NOBODY and state.lane == NOBODY:
            yield f"{name} locks the lane", _put(state, number, worker._replace(doing=LOCKED))._replace(lane_lock=name)
        else:
            yield f"{name} passes over the lane", _put(state, number, worker._replace(doing=NOBODY, saw=None))
    elif worker.doing == LOCKED:
        free = _free(state, fixes) if worker.saw is None else _still_free(state, worker.saw)
        for most in (1, 2):
            for by_list in (True, False):
                yield from _pick(state, fixes, number, name, (free[:most], by_list))
    else:
        yield from _commit(state, number, name, worker)


def _pick(
    state: State, fixes: LaneLists, number: int, name: str, wanted: tuple[tuple[int, ...], bool]
) -> Iterator[Step]:
    free, by_list = wanted
    listed = tuple(place for place in free if by_list and state.rows[place].untouched)
    after = _put(state, number, state.workers[number]._replace(doing=PICKED, has=free, by_list=listed, saw=None))
    for place in free:
        if place not in listed or fixes.rows_are_locked:
            after = _row(after, place, after.rows[place]._replace(lock=name))
    yield f"{name} picks {free}, of these {listed} by list", after


def _unlocked(state: State, name: str) -> State:
    for place in PLACES:
        if state.rows[place].lock == name:
            state = _row(state, place, state.rows[place]._replace(lock=NOBODY))
    return state._replace(lane_lock=NOBODY) if state.lane_lock == name else state


def _commit(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    after = _unlocked(state, name)
    if not worker.alive or not worker.has:  # its own row is locked by the claim, and gone; or there is nothing
        yield f"{name} claims nothing", _put(after, number, Worker(alive=worker.alive))
        return
    ahead = [place for place in range(worker.has[0]) if not _is_over(state.rows[place])]
    epochs = [0, 0]
    for place in worker.has:
        row = after.rows[place]
        if _is_over(row):
            after = after._replace(ran_cancelled=True)
        if place not in worker.by_list:
            row = row._replace(status=SENDING, owner=name, epoch=row.epoch + 1)
            after = _row(after, place, row)
        epochs[place] = row.epoch
    running = worker._replace(doing=RUNS, epochs=(epochs[0], epochs[1]))
    after = _listing(_put(after, number, running), number, worker.by_list)
    yield f"{name} commits", after._replace(lane=name, overtaken=state.overtaken or bool(ahead))


def _settle(state: State, fixes: LaneLists, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """Settles the first, the last or all, in any way, and looks at the lane; it waits for locks."""
    if state.lane_lock != NOBODY:
        return
    for outcome in (DONE, WAITING):
        if outcome == WAITING and not state.retries:
            continue
        for some in {worker.has[:1], worker.has[1:] if outcome == WAITING else (), worker.has} - {()}:
            if any(state.rows[place].lock != NOBODY for place in some):
                continue
            after = state if outcome == DONE else state._replace(retries=state.retries - 1)
            for place in some:
                after = _settle_one(after, fixes, number, place, outcome)
            left = tuple(place for place in worker.has if place not in some)
            after = _put(after, number, worker._replace(has=left, doing=RUNS if left else NOBODY))
            if not left:
                after = _listing(after, number, ())  # all that it names has ended
            yield f"{name} settles {some} as {outcome}", _look(after, fixes, number, name)


def _settle_one(state: State, fixes: LaneLists, number: int, place: int, outcome: str) -> State:
    """By its list while the row is untouched; otherwise by the token in the row. All but a success is written out."""
    worker, name = state.workers[number], WORKERS[number]
    if outcome != DONE:
        state = _write_out(state, number, place)
    row = state.rows[place]
    if row.status == SENDING and row.owner == name and row.epoch == worker.epochs[place]:
        status = CANCELLED if row.asked_to_stop and outcome != DONE else outcome
        return _row(state, place, Row(status, epoch=row.epoch + 1))
    untouched = row.status == WAITING and row.owner == NOBODY
    if place in worker.by_list and untouched and outcome == DONE:
        named = place in state.lists[number] and row.epoch == 0
        if named or not fixes.settles_are_fenced:
            other = state.workers[1 - number]
            stolen = not named or (other.alive and other.doing == RUNS and place in other.has)
            return _row(state, place, row._replace(status=DONE))._replace(stolen=state.stolen or stolen)
    return state


def _look(state: State, fixes: LaneLists, number: int, name: str) -> State:
    """The statement settle_lanes: gives the lane back once nothing of it is in flight."""
    if state.lane != name:
        return state
    head = next((place for place in PLACES if not _is_over(state.rows[place])), None)
    if head is None:
        return state._replace(lane=NOBODY)
    row = state.rows[head]
    touched = row.epoch > 0 or (row.owner != NOBODY and fixes.written_out_is_touched)
    flying = any(each.status == SENDING and each.owner == name for each in state.rows)
    named = any(state.rows[place].untouched for place in state.lists[number])
    if touched:
        busy = flying or (named and fixes.touched_head_looks)
    else:
        busy = head in state.lists[number] and row.untouched and fixes.heads_are_looked_up
    return state if busy else state._replace(lane=NOBODY)


def _write_out(state: State, number: int, place: int) -> State:
    """Makes the row say what the list says, unless the row has changed since."""
    row = state.rows[place]
    if place not in state.lists[number] or not row.untouched or row.owner != NOBODY:
        return state
    return _row(state, place, row._replace(status=SENDING, owner=WORKERS[number]))


def _write_out_list(state: State, number: int) -> State:
    """Writes out what nobody has locked. The list stays if one of its rows is locked."""
    left = False
    for place in state.lists[number]:
        if state.rows[place].lock == NOBODY:
            state = _write_out(state, number, place)
        elif state.rows[place].untouched:
            left = True
    return state if left else _listing(state, number, ())


def _write_out_old(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    if worker.alive and state.lists[number]:
        yield f"{name} writes its list out", _write_out_list(state, number)


def _lose(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    if state.faults and worker.alive and worker.doing != NOBODY:
        fewer = state._replace(faults=state.faults - 1)
        yield f"{name} loses its lease", _put(fewer, number, worker._replace(alive=False))
        yield f"{name} dies", _unlocked(_put(fewer, number, Worker(alive=False)), name)


def _reclaim(state: State) -> Iterator[Step]:
    """Frees what workers without a lease have: lists, deliveries, the lane. What is locked is left for later."""
    for number, name in enumerate(WORKERS):
        if state.workers[number].alive:
            continue
        after = _write_out_list(state, number)
        for place in PLACES:
            row = after.rows[place]
            if row.status == SENDING and row.owner == name and row.lock == NOBODY:
                after = _row(after, place, Row(CANCELLED if row.asked_to_stop else WAITING, epoch=row.epoch + 1))
        if after.lane == name and after.lane_lock == NOBODY:
            after = after._replace(lane=NOBODY)
        if after != state:
            yield f"what {name} had is freed", after


def _cancel(state: State) -> Iterator[Step]:
    """Cancels in three moments: the lock, the look for lists, the act."""
    doing, place = state.acting
    if doing == NOBODY:
        for each in PLACES:
            row = state.rows[each]
            if state.acts and row.status in (WAITING, SENDING) and row.lock == NOBODY:
                locked = _row(state, each, row._replace(lock=OPERATOR))
                yield f"the operator locks {each}", locked._replace(acting=(OPERATOR, each), acts=0)
        return
    row = state.rows[place]
    yield "the operator goes away", _row(state, place, row._replace(lock=NOBODY))._replace(acting=(NOBODY, 0))
    if doing == OPERATOR:
        listed = row.untouched and any(place in named for named in state.lists)
        yield "the operator looks for lists", state._replace(acting=(LISTED if listed else FREE, place))
        return
    after = _row(state, place, row._replace(lock=NOBODY))._replace(acting=(NOBODY, 0))
    if doing == LISTED:
        after = _write_out(after, 0 if place in state.lists[0] else 1, place)
    row = after.rows[place]
    if row.status == SENDING:
        yield "the operator asks its worker to stop", _row(after, place, row._replace(asked_to_stop=True))
    elif row.status == WAITING:
        runs = any(worker.doing == RUNS and worker.alive and place in worker.has for worker in state.workers)
        cancelled = _row(after, place, row._replace(status=CANCELLED, epoch=row.epoch + 1))
        yield "the operator cancels", cancelled._replace(ran_cancelled=state.ran_cancelled or runs)


def wrong(state: State, fixes: LaneLists) -> str | None:
    """What is wrong here."""
    if any(each.doing == RUNS and each.alive and state.lane != WORKERS[at] for at, each in enumerate(state.workers)):
        return "shared"
    if state.stolen:
        return "stolen"
    if state.overtaken:
        return "overtaken"
    if state.ran_cancelled:
        return "broken word"
    for number, name in enumerate(WORKERS):
        worker = state.workers[number]
        if worker.alive and worker.doing != RUNS and state.lane == name:
            return "kept"
    over = all(_is_over(row) for row in state.rows)
    return None if over or any(True for _ in steps(state._replace(acts=0), fixes)) else "forgotten"


def search(fixes: LaneLists) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), partial(wrong, fixes=fixes))


def without(name: str) -> LaneLists:
    """The protocol with one fix taken out."""
    return replace(LaneLists(), **{name: False})
