"""A delivery that is claimed by list, as a small model that is searched to its last state (I3, I4).

A claim by list writes one row that names the deliveries, and leaves the deliveries as they are. One delivery, which was
never claimed, is looked at. Two workers claim it, each by list or by its row, in the moments of one statement: the
snapshot, the lock of the row, the look at what is committed by then, the commit. They settle it, or lose their lease
and go on until a write tells them so. Reclaim writes out the list of a worker that is gone and frees the delivery. A
worker writes out a list that has become old. An operator cancels: he locks the row, looks for lists, and acts.

What must hold in every state:
- `shared`: no two workers that have their leases run the delivery (I3).
- `stolen`: no worker settles a delivery that it does not own (I3).
- `broken word`: what was cancelled before it began is never run (H22).
- `forgotten`: whatever is not over goes on, without an operator (I1).

A row that is locked and not changed stays the version that a statement saw: another one that waited for the lock, or
came after it, is not made to look at it again. That is what the second look is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
NOBODY: Final = ""
OPERATOR: Final = "operator"
WAITING, SENDING, CANCELLED, DONE = "waiting", "sending", "cancelled", "done"
LOOKED, LOCKED, CHECKED, RUNS = "looked", "locked", "checked", "runs"
FREE, LISTED = "free", "listed"


@dataclass(frozen=True)
class Lists:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    claims_look_again: bool = True
    """A claim looks for lists once more when it holds the lock of the row, with a new snapshot."""
    acts_lock_first: bool = True
    """An act locks the row before it looks for lists."""
    settles_are_fenced: bool = True
    """A settle by list needs the list of its worker to be there, and the epoch to be the one that was listed."""
    reclaim_writes_out: bool = True
    """Reclaim writes out lists of workers that are gone."""


class Worker(NamedTuple):
    """What a worker does with the delivery, by which kind of claim, and whether it still has its lease."""

    doing: str = NOBODY
    by_list: bool = False
    epoch: int = 0
    version: int = 0  # of the row, when its statement began
    alive: bool = True


class State(NamedTuple):
    """Where everything stands."""

    status: str = WAITING
    owner: str = NOBODY  # of a delivery that is sending
    epoch: int = 0
    version: int = 0  # rises with every change of the row
    lock: str = NOBODY
    lists: tuple[bool, bool] = (False, False)  # whether each worker has a list that names the delivery
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    cancelling: str = NOBODY  # what the operator has seen: FREE or LISTED
    asked_to_stop: bool = False
    stolen: bool = False
    ran_cancelled: bool = False
    faults: int = 2
    acts: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: Lists) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        worker = state.workers[number]
        match worker.doing:
            case "":
                yield from _begin(state, number, name, worker)
            case "runs":
                yield from _settle(state, fixes, number, name, worker)
                yield from _write_out_old(state, number, name, worker)
            case _:
                yield from _claim(state, fixes, number, name, worker)
        yield from _lose(state, number, name, worker)
    yield from _reclaim(state, fixes)
    yield from _cancel(state, fixes)


def _put(state: State, number: int, worker: Worker) -> State:
    one, other = state.workers
    return state._replace(workers=(worker, other) if number == 0 else (one, worker))


def _listed(state: State, number: int, *, to: bool) -> tuple[bool, bool]:
    return (to, state.lists[1]) if number == 0 else (state.lists[0], to)


def _begin(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """A statement takes its snapshot: it sees a delivery that waits, and no list."""
    if worker.alive and state.status == WAITING and not (state.epoch == 0 and any(state.lists)):
        for by_list in (True, False) if state.epoch == 0 else (False,):
            looked = Worker(LOOKED, by_list, state.epoch, state.version)
            yield f"{name} begins a claim by {'list' if by_list else 'row'}", _put(state, number, looked)


def _claim(state: State, fixes: Lists, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """The rest of the statement: the lock, the second look, the commit."""
    gone = _put(state, number, worker._replace(doing=NOBODY))
    match worker.doing:
        case "looked":
            if state.lock != NOBODY or state.version != worker.version:
                yield f"{name} passes over the row", gone
            else:
                yield f"{name} locks the row", _put(state, number, worker._replace(doing=LOCKED))._replace(lock=name)
        case "locked":
            if fixes.claims_look_again and state.epoch == 0 and any(state.lists):
                yield f"{name} sees that it is listed", gone._replace(lock=NOBODY)
            else:
                yield f"{name} has looked again", _put(state, number, worker._replace(doing=CHECKED))
        case _:
            yield from _commit(state, number, name, worker)


def _commit(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    if not worker.alive:  # its own row is locked by the claim, and gone
        yield f"{name} claims nothing", _put(state, number, worker._replace(doing=NOBODY))._replace(lock=NOBODY)
        return
    running = worker._replace(doing=RUNS, epoch=state.epoch if worker.by_list else state.epoch + 1)
    after = _put(state, number, running)._replace(
        lock=NOBODY, ran_cancelled=state.ran_cancelled or state.status == CANCELLED
    )
    if worker.by_list:
        yield f"{name} commits its list", after._replace(lists=_listed(state, number, to=True))
    else:
        taken = after._replace(status=SENDING, owner=name, epoch=state.epoch + 1, version=state.version + 1)
        yield f"{name} commits its claim", taken


def _settle(state: State, fixes: Lists, number: int, name: str, worker: Worker) -> Iterator[Step]:
    """By its list while the row is untouched; otherwise by the token in the row, once the list was written out."""
    idle = _put(state, number, worker._replace(doing=NOBODY))
    if state.lock != NOBODY:
        return  # it waits
    owns = state.status == WAITING and (
        (state.lists[number] and state.epoch == worker.epoch) or not fixes.settles_are_fenced
    )
    by_token = state.status == SENDING and state.owner == name and state.epoch == worker.epoch
    if worker.by_list and owns:
        stolen = state.epoch != worker.epoch  # it was freed meanwhile
        done = idle._replace(status=DONE, version=state.version + 1, lists=(False, False))
        yield f"{name} settles by its list", done._replace(stolen=state.stolen or stolen)
    elif by_token:
        done = idle._replace(status=DONE, owner=NOBODY, version=state.version + 1)
        yield f"{name} settles by its token", done._replace(lists=_listed(state, number, to=False))
    else:
        yield f"{name} finds that it was lost", idle


def _write_out_old(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    if worker.alive and state.lists[number] and state.lock == NOBODY:
        yield f"{name} writes its list out", _write_out(state, number)._replace(lists=_listed(state, number, to=False))


def _write_out(state: State, number: int) -> State:
    """Makes the row say what the list says, unless the row has changed since."""
    if state.status != WAITING or state.epoch != 0:
        return state
    return state._replace(status=SENDING, owner=WORKERS[number], version=state.version + 1)


def _lose(state: State, number: int, name: str, worker: Worker) -> Iterator[Step]:
    if state.faults and worker.alive and worker.doing != NOBODY:
        yield (
            f"{name} loses its lease",
            _put(state, number, worker._replace(alive=False))._replace(faults=state.faults - 1),
        )
        died = _put(state, number, Worker(alive=False))._replace(faults=state.faults - 1)
        yield f"{name} dies", died._replace(lock=NOBODY if state.lock == name else state.lock)
    if not worker.alive and worker.doing == NOBODY and not state.lists[number] and state.owner != name:
        yield f"{name} begins anew", _put(state, number, Worker())


def _reclaim(state: State, fixes: Lists) -> Iterator[Step]:
    """Writes out what a worker without a lease has listed, and frees what it has. Locked rows are left for later."""
    if state.lock != NOBODY:
        return
    for number, name in enumerate(WORKERS):
        if state.workers[number].alive:
            continue
        after = state
        if state.lists[number] and fixes.reclaim_writes_out:
            after = _write_out(state, number)._replace(lists=_listed(state, number, to=False))
        if after.status == SENDING and after.owner == name:
            status = CANCELLED if after.asked_to_stop else WAITING
            after = after._replace(
                status=status, owner=NOBODY, epoch=after.epoch + 1, version=after.version + 1, asked_to_stop=False
            )
        if after != state:
            yield f"what {name} had is freed", after


def _cancel(state: State, fixes: Lists) -> Iterator[Step]:
    """Cancels in three moments: the lock, the look for lists, the act."""
    seen = FREE if state.epoch or not any(state.lists) else LISTED
    if state.cancelling == NOBODY:
        if not state.acts or state.status not in (WAITING, SENDING):
            return
        if not fixes.acts_lock_first:
            yield "the operator looks for lists", state._replace(cancelling=seen, acts=0)
        elif state.lock == NOBODY:
            yield "the operator locks the row", state._replace(cancelling=OPERATOR, lock=OPERATOR, acts=0)
    elif state.cancelling == OPERATOR:
        yield "the operator looks for lists", state._replace(cancelling=seen)
    elif state.lock in (NOBODY, OPERATOR):
        after = state._replace(cancelling=NOBODY, lock=NOBODY)
        if state.cancelling == LISTED:
            after = _write_out(after, 0 if state.lists[0] else 1)
        if after.status == SENDING:
            yield "the operator asks its worker to stop", after._replace(asked_to_stop=True, version=after.version + 1)
        elif after.status == WAITING:
            runs = any(worker.doing == RUNS and worker.alive for worker in state.workers)
            cancelled = after._replace(status=CANCELLED, epoch=after.epoch + 1, version=after.version + 1)
            yield "the operator cancels", cancelled._replace(ran_cancelled=state.ran_cancelled or runs)


def wrong(state: State, fixes: Lists) -> str | None:
    """What is wrong here."""
    if sum(worker.doing == RUNS and worker.alive for worker in state.workers) > 1:
        return "shared"
    if state.stolen:
        return "stolen"
    if state.ran_cancelled:
        return "broken word"
    over = state.status in (DONE, CANCELLED)
    return None if over or any(True for _ in steps(state._replace(acts=0), fixes)) else "forgotten"


def search(fixes: Lists) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), partial(wrong, fixes=fixes))


def without(name: str) -> Lists:
    """The protocol with one fix taken out."""
    return replace(Lists(), **{name: False})
