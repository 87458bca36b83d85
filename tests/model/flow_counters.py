"""The counters of one run (R6), as a small model that is searched to its last state.

A run stores steps, fails, parks, is given back before it starts, and loses its worker. `attempts` counts failures
without progress, `lost` the workers that died of it without progress; both are in the row, and a copy of `attempts` is
in the claim, by which the worker decides about a failure.

What must hold in every state:
- `negative`: attempts are never below 0.
- `uneven`: a run in flight has one attempt more than it has failed since its last step.
- `given up too early`, `given up too late`: it ends by failures or by lost workers after so many without progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

MAX_ATTEMPTS: Final = 3
MAX_LOST: Final = 3
STEPS: Final = 3
WAITING, RUNNING, FAILED, LOST, DONE = "waiting", "running", "dead by failures", "dead by lost workers", "done"


@dataclass(frozen=True)
class Counters:
    """What makes it right. Each may be taken out, and the search then finds what breaks."""

    progress_sets_one: bool = True
    """A stored step sets attempts to 1, not to 0: the attempt that is under way is one, and may be given back."""
    progress_resets_lost: bool = True
    """A stored step sets lost to 0."""
    progress_reaches_the_claim: bool = True
    """The worker counts by what it has stored, not by what it claimed."""
    parking_gives_back: bool = True
    """An attempt that parks is not counted."""
    parking_resets_lost: bool = True
    """A run that parks has not killed its worker."""
    losing_gives_back: bool = True
    """An attempt whose worker died is counted as lost, and not as a failure, too (H6)."""


class State(NamedTuple):
    """The row, the claim, and what has truly happened since the last step."""

    status: str = WAITING
    attempts: int = 0
    lost: int = 0
    claimed: int = 0  # the attempt, as the claim says
    stored: int = 0
    parks: int = 2
    failures: int = 0  # ghost: without progress
    losses: int = 0  # ghost: without progress, and without having parked


Step = tuple[str, State]


def steps(state: State, fixes: Counters) -> Iterator[Step]:
    """Everything that may happen next."""
    if state.status == WAITING:
        attempts = state.attempts + 1
        yield "a worker claims", state._replace(status=RUNNING, attempts=attempts, claimed=attempts)
    if state.status != RUNNING:
        return
    back = state.attempts - 1
    yield "the worker gives it back", state._replace(status=WAITING, attempts=back)
    if state.stored < STEPS:
        attempts = 1 if fixes.progress_sets_one else 0
        lost = 0 if fixes.progress_resets_lost else state.lost
        claimed = attempts if fixes.progress_reaches_the_claim else state.claimed
        stored = state._replace(attempts=attempts, lost=lost, claimed=claimed, stored=state.stored + 1)
        yield "a step is stored", stored._replace(failures=0, losses=0)
    else:
        yield "the run ends", state._replace(status=DONE)
    if state.parks:
        attempts = back if fixes.parking_gives_back else state.attempts
        lost = 0 if fixes.parking_resets_lost else state.lost
        parked = state._replace(status=WAITING, attempts=attempts, lost=lost, losses=0, parks=state.parks - 1)
        yield "the run parks, and is woken", parked
    dead = state.claimed >= MAX_ATTEMPTS
    yield "the run fails", state._replace(status=FAILED if dead else WAITING, failures=state.failures + 1)
    lost, attempts = state.lost + 1, back if fixes.losing_gives_back else state.attempts
    died = state._replace(status=LOST if lost >= MAX_LOST else WAITING, attempts=attempts, lost=lost)
    yield "its worker dies, and it is reclaimed", died._replace(losses=state.losses + 1)


def wrong(state: State) -> str | None:
    """What is wrong here."""
    if state.attempts < 0:
        return "negative"
    if (state.status == FAILED and state.failures < MAX_ATTEMPTS) or (state.status == LOST and state.losses < MAX_LOST):
        return "given up too early"
    if state.status != FAILED and state.failures >= MAX_ATTEMPTS:
        return "given up too late"
    if state.status != LOST and state.losses >= MAX_LOST:
        return "given up too late"
    if state.status == RUNNING and state.attempts != state.failures + 1:
        return "uneven"
    return None


def search(fixes: Counters) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), wrong)


def without(name: str) -> Counters:
    """The protocol with one fix taken out."""
    return replace(Counters(), **{name: False})
