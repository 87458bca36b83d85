"""What a state of the model is made of: the database, the workers' memories, and what may still go wrong.

Everything is an immutable tuple of short strings and small integers, so that states hash quickly and two equal
ones are one. Two simplifications keep the space finite without hiding anything:

* There is no clock. "The lease is over" and "the back-off is over" are events that may happen at any moment, so
  every timing is covered, the unlikely ones too. A *paused* worker is one that takes no step while its lease ends.
* Names wear off. Epochs and incarnations are only ever compared, so `canonical` renumbers them and sorts the
  workers; a trace is shown with the true numbers.

Fields marked *ghost* exist only for the invariants: no step of the protocol decides by them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

NOBODY: Final = -1

# The five states of a delivery (DESIGN §2), and the one before it is published.
ABSENT: Final = "absent"
PENDING: Final = "pending"
SENDING: Final = "sending"
FAILED: Final = "failed"
SUCCEEDED: Final = "succeeded"
ABORTED: Final = "aborted"
TERMINAL: Final = frozenset({SUCCEEDED, ABORTED})
DUE: Final = frozenset({PENDING, FAILED})

# Why a delivery was aborted.
GAVE_UP: Final = "GAVE_UP"
WORKER_LOST: Final = "WORKER_LOST"
CANCELLED: Final = "CANCELLED"
CONFLICT: Final = "IDEMPOTENCY_CONFLICT"
NO_ROUTE: Final = "NO_ROUTE"

# A worker row in the database.
NO_LEASE: Final = "no row"
LIVE: Final = "live"
RENEWING: Final = "ended, renewal uncommitted"  # the renewal began in time and holds the row's lock
ENDED: Final = "ended"

# What a process is doing.
DOWN: Final = "down"
UP: Final = "up"
DRAINING: Final = "draining"
EXITING: Final = "exiting"  # its last act has read what it owns (only when that is one statement)
HUNG: Final = "hung"  # its event loop is stuck, its heartbeat thread is not

# A claim on its way.
NO_CLAIM: Final = "none"
ASKED: Final = "asked"
ASKED_BUSY: Final = "asked, no suspect"  # the worker holds something, and a suspect wants it to itself
REPLYING: Final = "committed"

ON_ITS_WAY: Final = frozenset({ASKED, ASKED_BUSY})

# What a worker knows about a delivery it holds.
CLAIMED: Final = "claimed"  # not started
RUNNING: Final = "running"
OUTCOME: Final = "outcome known"  # to be settled
UNSURE_OPEN: Final = "settle unanswered (not committed)"  # the worker sees "unanswered"; which one is ghost
UNSURE_DONE: Final = "settle unanswered (committed)"
LEDGER_LEFT: Final = "row settled, ledger not yet"  # only when settle is two transactions
STRAY: Final = "running without its row"  # timed out, cancelled or lost, and cannot be stopped
LATE: Final = "a stray's outcome"
EXECUTING: Final = frozenset({CLAIMED, RUNNING})

# What an attempt came to.
DONE: Final = "Done"
RETRY: Final = "Retry"
ABORT: Final = "Abort"
RELEASE: Final = "release"
KNOWN_DONE: Final = "Done before"  # the effect entry says so: nothing is sent
OBEY_CANCEL: Final = "cancelled"
OBEY_CONFLICT: Final = "conflict"

# An effect entry of the ledger.
ACCEPTED: Final = "accepted"

# A message.
UNPUBLISHED: Final = "unpublished"
UNANSWERED: Final = "published, reply lost"
ACKNOWLEDGED: Final = "acknowledged"
REFUSED: Final = "refused"
PRUNED: Final = "pruned"


class Row(NamedTuple):
    """One delivery in the database. `succeeded` stands for its row in `history`."""

    status: str = ABSENT
    epoch: int = 0
    owner: int = NOBODY
    attempts: int = 0
    lost: int = 0
    replays: int = 0
    cancel_requested: bool = False
    reason: str = ""
    audits: int = 0  # replays and reopenings that wrote who, when and why
    begun: bool = False  # ghost: the present owner has started it
    asked: bool = False  # ghost: somebody cancelled it since its last replay
    effects: int = 0  # ghost: how often the destination took it


class Entry(NamedTuple):
    """An effect entry of the ledger: (destination, key) → digest, state, and the delivery it speaks of."""

    digest: str
    state: str
    holder: int


class Held(NamedTuple):
    """What a worker remembers of one claimed delivery: its token (delivery, epoch, owner) and how far it is."""

    delivery: int
    epoch: int
    owner: int
    phase: str = CLAIMED
    outcome: str = ""
    suspect: bool = False  # the claim said lost > 0
    again: bool = False  # the claim said lost > 0 or attempts > 1
    seen: str = ""  # the effect entry as the claim returned it


class Worker(NamedTuple):
    """A process: what it does, the incarnation it lives under, its claim on the way, and what it holds."""

    mode: str = DOWN
    me: int = NOBODY
    claim: str = NO_CLAIM
    reply: tuple[Held, ...] = ()
    held: tuple[Held, ...] = ()


class Budget(NamedTuple):
    """How often each disturbance may still happen. What has been spent is what has gone wrong so far."""

    crashes: int = 0
    lapses: int = 0  # a lease ends under a living worker: paused, or its heartbeats lost
    ambiguous: int = 0  # a worker's reply is lost, or its commit fails
    unanswered: int = 0  # the same for a publisher
    timeouts: int = 0
    failures: int = 0  # the destination says no, transiently or for good
    cancels: int = 0
    replays: int = 0
    drains: int = 0
    reopens: int = 0
    prunes: int = 0
    fanouts: int = 0
    failovers: int = 0


class State(NamedTuple):
    """The whole world at one moment."""

    rows: tuple[Row, ...]
    ledger: tuple[Entry | None, ...]
    recorded: tuple[str, ...]  # ghost: the digest each effect entry ever succeeded with
    messages: tuple[str, ...]
    copies: tuple[int, ...]  # ghost: how often each message was queued
    leases: tuple[str, ...]  # one per incarnation
    workers: tuple[Worker, ...]
    adrift: tuple[tuple[int, str], ...]  # claims that still run in a backend and that nobody waits for any more
    budget: Budget
    reopening: tuple[tuple[int, int], ...] = ()  # duplicate publishes that read (delivery, epoch) as aborted
    pruning: bool = False  # a prune has seen that no delivery is left (only without the lock)
    freeing: bool = False  # a reclaim has done its first statement (only when it goes by the clock)
    unflushed: tuple[tuple[int, Row], ...] = ()  # rows as they were before an asynchronous claim


class Event(NamedTuple):
    """What happened in one step: a name, who did it, to which deliveries, and with which incarnation's token."""

    name: str
    worker: int = NOBODY
    deliveries: tuple[int, ...] = ()
    token: Held | None = None


Step = tuple[Event, State]


T = TypeVar("T")


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """The tuple with one item replaced."""
    return (*items[:index], item, *items[index + 1 :])
