"""The restart of a run (R14), as a small model that is searched to its last state.

The code of the run charges a card (with an undo), publishes the run that follows it, and ends. Its arguments for that
run may be others after a deploy. Workers die or lose their lease; the run may become a dead letter, which an operator
replays, rewinds or cancels. The idempotency key of the next run would hide some of these holes for as long as it is
kept; it is left out here.

What must hold in every state:
- `two`: a run is followed by one other.
- `none`: a run that has ended is followed by one.
- `undone`: what a run did is not undone once another goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

WORKERS: Final = ("A", "B")
DUE, DONE, DEAD, UNDOING = "due", "done", "dead", "undoing"
PUBLISH, STORE = "publish", "store the row"


@dataclass(frozen=True)
class Restarts:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    one_commit: bool = True
    """The next run and the row of the step are one commit."""
    publish_is_fenced: bool = True
    """Only the worker that owns the run publishes the next one."""
    key_without_arguments: bool = True
    """The key of the step does not depend on its arguments: a deploy that changes them changes nothing."""
    restarted_is_not_rewound: bool = True
    """A run that is followed by another is not rewound: its restart would begin a second one."""
    restarted_is_not_undone: bool = True
    """A run that is followed by another is not undone, also if it is given up before it could end."""


class State(NamedTuple):
    """Where everything stands."""

    status: str = DUE
    epoch: int = 0
    row: str = ""  # the arguments that the next run was published with
    code: str = "old"
    followers: int = 0
    workers: tuple[tuple[int, str] | None, tuple[int, str] | None] = (None, None)  # epoch, and what is next
    faults: int = 2
    acts: int = 3


Step = tuple[str, State]


def steps(state: State, fixes: Restarts) -> Iterator[Step]:
    """Everything that may happen next."""
    for number, name in enumerate(WORKERS):
        worker = state.workers[number]
        if worker is None:
            if state.status == DUE:
                claimed = state._replace(status=name, epoch=state.epoch + 1)
                yield f"{name} claims", _put(claimed, number, (state.epoch + 1, ""))
            continue
        yield from _run(state, fixes, number, worker)
        owns = state.status == name and state.epoch == worker[0]
        if owns and state.faults:
            freed = state._replace(epoch=state.epoch + 1, faults=state.faults - 1)
            yield f"{name} dies", _put(freed._replace(status=DUE), number, None)
            yield f"{name} loses its lease", freed._replace(status=DUE)
            yield f"the run fails in {name}", _put(freed._replace(status=DEAD), number, None)
    if state.code == "old":
        yield "a deploy changes the arguments", state._replace(code="new")
    yield from _operator(state, fixes)


def _put(state: State, number: int, worker: tuple[int, str] | None) -> State:
    one, other = state.workers
    return state._replace(workers=(worker, other) if number == 0 else (one, worker))


def _run(state: State, fixes: Restarts, number: int, worker: tuple[int, str]) -> Iterator[Step]:
    name, (epoch, next) = WORKERS[number], worker
    owns = state.status == name and state.epoch == epoch
    stored = bool(state.row) if fixes.key_without_arguments else state.row == state.code
    if not next:
        if not owns:
            yield f"{name} finds out that its lease is lost", _put(state, number, None)
        elif stored:
            yield f"{name} ends the run", _put(state, number, None)._replace(status=DONE, epoch=epoch + 1)
        else:
            yield f"{name} comes to the restart", _put(state, number, (epoch, PUBLISH))
    elif next == STORE:
        yield f"{name} stores the row", _put(state, number, (epoch, ""))._replace(row=state.code)
    elif not owns and fixes.publish_is_fenced:
        yield f"{name} is told that it has lost the run", _put(state, number, None)
    else:
        published = state._replace(followers=state.followers + 1)
        if fixes.one_commit:
            yield f"{name} publishes the next run", _put(published, number, (epoch, ""))._replace(row=state.code)
        else:
            yield f"{name} publishes the next run", _put(published, number, (epoch, STORE))


def _operator(state: State, fixes: Restarts) -> Iterator[Step]:
    if not state.acts or state.status not in (DUE, DEAD):
        return
    acted = state._replace(epoch=state.epoch + 1, acts=state.acts - 1)
    if state.status == DEAD:
        yield "an operator replays the run", acted._replace(status=DUE)
        if not (fixes.restarted_is_not_rewound and state.followers):
            yield "an operator rewinds the run", acted._replace(status=DUE, row="")
    undone = not (fixes.restarted_is_not_undone and state.followers)
    yield "an operator gives the run up", acted._replace(status=UNDOING if undone else DEAD)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    if state.followers > 1:
        return "two"
    if state.status == DONE and not state.followers:
        return "none"
    if state.status == UNDOING and state.followers:
        return "undone"
    return None


def search(fixes: Restarts) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Restarts:
    """The protocol with one fix taken out."""
    return replace(Restarts(), **{name: False})
