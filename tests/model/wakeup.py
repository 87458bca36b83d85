"""The wake-up of a sleeping worker, searched exhaustively: can a message wait for the long poll? (H25, MEND-3)

Another model than the rest of this package: it is about notices, and ownership plays no part in it. One worker (its
claimer, its heartbeat, a lease that may end), one publisher of one message, and the worker's row in the database. Each
step is one statement, commit or delivery; every order of them is tried.

A publisher gives notice only if it reads "idle" in the worker's row. The worker looks for work, writes "idle", looks
once more, and sleeps until a notice comes or until its polls come round: soon after it fell asleep, later and later
then. The model leaves the late polls out. What it asks: does the worker sleep for good while a message waits that a
notice should have told it of, or that it should have found before it fell asleep? A publisher that read the row before
the worker wrote "idle" and commits after the worker's last look gives no notice: the soon polls are for it, and it does
not count here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tests.model import breadth_first
from tests.model.breadth_first import Found

RUNNING: Final = "running"
IDLE: Final = "idle"

# The claimer's next step.
LOOK: Final = "look"
FALL_ASLEEP: Final = "fall asleep"
SLEEP: Final = "sleep"

# The publisher's next step.
READ: Final = "read the worker's row"
COMMIT: Final = "commit"
DELIVER: Final = "deliver the notice"
OVER: Final = "over"


@dataclass(frozen=True)
class Wakeup:
    """The fixes, each a switch. All on: that is the protocol."""

    renewal_leaves_state: bool = True  # a heartbeat does not write the state it read before
    state_is_of_incarnation: bool = True  # a worker that took a new id wakes up and writes its state anew
    lost_reply_is_unknown: bool = True  # a write whose reply is lost is repeated
    looks_after_idle: bool = True  # having written "idle", the claimer looks once more
    looks_everywhere: bool = True  # that look, and the one after a notice, has no budget: it sees every place
    looks_after_finding: bool = True  # a claim at places it knows is no look: the claimer still owes the one it began


class State(NamedTuple):
    """The row in the database, what the claimer believes of it, and where everyone stands."""

    row: str = RUNNING
    believed: str = RUNNING  # what the claimer takes the row to say; "" when it does not know
    claimer: str = LOOK
    may_see: bool = True  # whether the next look sees places it has not seen before
    woken: bool = False
    heart: str | None = None  # the state that a heartbeat has read and not written yet
    publisher: str = READ
    gives_notice: bool = False
    owed: bool = False  # ghost: a notice or a look should find it (everything but what the soon polls are for)
    claimed: bool = False
    renewals: int = 1
    new_leases: int = 1
    lost_replies: int = 1
    notices_of_others: int = 1
    messages_of_others: int = 1


Step = tuple[str, State]


def steps(state: State, fixes: Wakeup) -> Iterator[Step]:
    """Everything that may happen next."""
    yield from _claimer(state, fixes)
    yield from _heartbeat(state, fixes)
    yield from _publisher(state)


def _claimer(state: State, fixes: Wakeup) -> Iterator[Step]:
    committed = state.publisher in (DELIVER, OVER)
    asleep = SLEEP if state.believed == IDLE else FALL_ASLEEP
    if state.claimer == LOOK and state.messages_of_others and not state.claimed:
        # At a place that it knows. Polls do not begin anew after it, so what else waits has to be looked for at once.
        left, after = state.messages_of_others - 1, LOOK if fixes.looks_after_finding else asleep
        yield "the claimer finds another message", state._replace(claimer=after, messages_of_others=left)
    match state.claimer:
        case "look" if committed and not state.claimed and state.may_see:
            yield "the claimer finds the message", state._replace(claimed=True)
        case "look" if state.claimed:
            return
        case "look":
            # A look that was not complete is followed by a sleep, as a complete one is.
            yield "the claimer finds nothing", state._replace(claimer=asleep, may_see=False)
        case "fall asleep":
            after = LOOK if fixes.looks_after_idle else SLEEP
            written = state._replace(row=IDLE, believed=IDLE, claimer=after, may_see=fixes.looks_everywhere)
            yield "the claimer writes idle", written
            if state.lost_replies:
                # Its reply is lost: it was committed or not.
                left = state.lost_replies - 1
                believed = FALL_ASLEEP if fixes.lost_reply_is_unknown else SLEEP
                for row in (IDLE, state.row):
                    unsure = state._replace(row=row, claimer=believed, lost_replies=left)
                    yield "the reply to writing idle is lost", unsure
        case "sleep" if state.woken:
            yield (
                "a notice wakes the claimer",
                state._replace(claimer=LOOK, woken=False, may_see=fixes.looks_everywhere),
            )
        case "sleep" if state.notices_of_others and state.row == IDLE:
            # A notice of a message that another worker took: this one looks, and goes back to sleep.
            left = state.notices_of_others - 1
            yield "a notice of another message comes", state._replace(woken=True, notices_of_others=left)
        case _:
            return


def _heartbeat(state: State, fixes: Wakeup) -> Iterator[Step]:
    if state.heart is None and state.renewals:
        read = state._replace(heart=state.believed, renewals=state.renewals - 1)
        yield "the heartbeat begins a renewal", read
    if state.heart is not None:
        row = state.row if fixes.renewal_leaves_state else state.heart
        yield "the heartbeat renews the lease", state._replace(row=row, heart=None)
    if state.new_leases:
        # The lease ended; the row of the new incarnation says "running", and the claimer is woken to write its state.
        believed, claimer = state.believed, state.claimer
        if fixes.state_is_of_incarnation and believed == IDLE:
            believed, claimer = RUNNING, FALL_ASLEEP if claimer == SLEEP else claimer
        new = state._replace(row=RUNNING, believed=believed, claimer=claimer, heart=None, new_leases=0)
        yield "the worker begins a new lease", new


def _publisher(state: State) -> Iterator[Step]:
    match state.publisher:
        case "read the worker's row":
            sees = state.row == IDLE
            owed = state.claimer == SLEEP and not state.woken
            yield "the publisher reads the row", state._replace(publisher=COMMIT, gives_notice=sees, owed=owed)
        case "commit":
            after = DELIVER if state.gives_notice else OVER
            owed = state.owed or state.claimer != SLEEP
            yield "the publisher commits", state._replace(publisher=after, owed=owed)
        case "deliver the notice":
            yield "the notice is delivered", state._replace(publisher=OVER, woken=True)
        case _:
            return


def strands(state: State) -> bool:
    """Whether a message that should have been found waits while nothing but a late poll finds it."""
    waits = state.publisher == OVER and state.owed and not state.claimed
    return waits and state.claimer == SLEEP and not state.woken


def search(fixes: Wakeup) -> Found:
    """Looks at every reachable state."""
    return breadth_first.search(State(), partial(steps, fixes=fixes), lambda state: "waits" if strands(state) else None)


def without(name: str) -> Wakeup:
    """The protocol with one fix taken out."""
    return replace(Wakeup(), **{name: False})
