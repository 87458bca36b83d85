"""The one port between todoku and its databases. Each docstring is the contract the conformance suite checks.

Any call may raise DatabaseUnavailable, and then its outcome is unknown; every call may be repeated then, because
a token (id, epoch, worker) works once. Calls block; they may be made from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec

from todoku.core.decision import Settlement
from todoku.core.ending import Hook
from todoku.core.message import Claimed
from todoku.core.outcome import Outcome
from todoku.store.portparts import PortParts
from todoku.store.values import (
    UNCOUNTED,
    Acted,
    BatchStatus,
    Cleared,
    Counted,
    Counts,
    Entry,
    Filter,
    Gated,
    Held,
    Lag,
    Limits,
    Migrated,
    Page,
    Pruned,
    Reclaimed,
    SettleReport,
    Signed,
    Slice,
    Standing,
    Story,
    Transacted,
    Waiting,
    WorkerRow,
    WorkerState,
)
from todoku.store.views import DeadGroup, Event, Facts, FullGate, Known, Preview, Situation

T = TypeVar("T")
Token = TypeVar("Token", Claimed, Held)
Value = None | bool | int | float | str | bytes | list[int] | list[str]
Row = tuple[object, ...]


class Listener(Protocol):
    """Somebody who waits for notices of new work."""

    announces: bool
    """Whether publishers give notice only while a worker says that it is idle."""

    def close(self) -> None:
        """Wait no longer."""


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement for whatever connection runs it: `:name` parameters, one mapping of values or many."""

    sql: str
    values: Mapping[str, Value] | Sequence[Mapping[str, Value]]


Steps = Generator[Statement, list[Row], T]
"""A piece of work on a connection that is somebody else's: yields statements, is sent their rows, returns T."""


class Store(PortParts, Protocol):
    """Messages, deliveries, leases and the ledger, in one database."""

    claiming_seconds: float
    """Seconds that `waiting` and the claims of this store have worked so far, without what they waited for: a
    connection, the write lock of SQLite, the lock of a limit."""

    # ---------------------------------------------------------------------------------------- its life

    def migrate(self) -> Migrated:
        """Bring the schema to this program's version, once, however many processes ask at the same time.

        A newer schema, or a migration whose text changed after it was applied, raises SchemaError.
        """

    def ping(self) -> float:
        """The database's clock, in unix seconds; raises DatabaseUnavailable if nobody answers."""

    def close(self) -> None:
        """Give back every connection. The store cannot be used afterwards."""

    def run(self, steps: Steps[T]) -> T:
        """Run `steps` in a transaction of their own: all of them are committed, or none."""

    # ---------------------------------------------------------------------------------------- the lease

    def register(self, worker: UUID, *, name: str, lease: float) -> None:
        """Begin the lease of a new worker incarnation. The id must never have been used before."""

    def renew(self, worker: UUID, *, lease: float) -> bool:
        """Extend a lease that has not ended. False: it has, everything the worker holds is lost (I3)."""

    def set_state(self, worker: UUID, state: WorkerState) -> None:
        """Write what a worker does. Its lease is not renewed by it. Publishers give notice while one is "idle"."""

    def listen(self, notice: Callable[[], None]) -> Listener:
        """Call `notice`, from a thread, whenever there may be new work. It may be called too often, and too seldom."""

    def owned(self, worker: UUID) -> list[Held]:
        """What the database says the worker owns, and whether it was asked to stop."""

    def bury(self, worker: UUID, *, lost: bool, max_lost: int = 3) -> Reclaimed:
        """End a lease at once and free everything owned. `lost`: its attempts may have started (a dead child).

        What somebody keeps locked for long is left to reclaim.
        """

    def reclaim(self, *, max_lost: int = 3, signed: Signed | None = None) -> Reclaimed:
        """End the leases that ran out, then free every delivery and lane that has no live owner.

        Attempts are given back, `lost` rises; at `max_lost` the delivery is aborted with WORKER_LOST, unless the
        ledger knows that it succeeded. Audited if a person does it.
        """

    # ----------------------------------------------------------------------------------------- the line

    def waiting(self, destinations: Sequence[str] | None) -> Waiting:
        """Where work waits for these destinations (None: all), due or not. Cost: the number of places, not rows."""

    def claim(
        self, worker: UUID, slices: Sequence[Slice], *, limit: int, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        """Take up to `limit` due deliveries, slice by slice, each slice in time order.

        Each row goes to one worker (I3), with `attempt` and `epoch` raised. A worker whose lease ended gets nothing.
        Paused queues, open breakers, expired and future rows, lanes, gates and suspects are passed over.

        Of the names `counted`, here and in the other claims, no more is taken than their limits leave: exactly,
        whoever else claims at the same moment. What is at its limit is passed over, and not waited for.
        """

    def claim_suspect(
        self, worker: UUID, places: Sequence[tuple[str, str]], *, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        """Take one due delivery whose owner died before, if there is one; not past the limit of its key."""

    def claim_gates(
        self, worker: UUID, places: Sequence[Gated], *, number: int, limit: int, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        """Take up to `limit` due deliveries of up to `number` gates: of each key as many as its limit leaves.

        Exactly so many of a key run at once, and start a second, whoever else claims. Larger priorities first, and
        gates take turns. What a full gate holds back is not looked at. The limit of the last claim is the gate's.
        """

    def claim_lanes(
        self,
        worker: UUID,
        places: Sequence[tuple[str, str]],
        *,
        lanes: int,
        limit: int,
        counted: Counted = UNCOUNTED,
    ) -> list[Claimed]:
        """Take up to `lanes` lanes and of each the first rows in order: one if its head has failed before.

        Rows of a lane come in order, and must be run in turn (I10). A head that may not run yet blocks its lane.
        A row whose owner died comes alone (H6).
        """

    def effects(self, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
        """The effect entries, as (state, digest) by delivery id, of those claims that have a key and an entry."""

    def settle(self, settled: Sequence[tuple[Claimed, Settlement]]) -> SettleReport:
        """Write what attempts came to: ledger, delivery, history, in one transaction (I5).

        Fenced by (id, epoch, worker): what is not owned any more changes nothing and is reported `lost`. What this
        worker has settled before is reported as settled, so that repeating after a lost reply is harmless (a repeated
        snooze is reported `lost`: it leaves no record, and nothing to lose). Rows that
        somebody keeps locked do not hold up the others: they are reported `stuck`.
        """

    def transact(self, claim: Claimed, work: Callable[[Any], Outcome], *, limit: float) -> Outcome | Transacted:
        """Run `work` with an open transaction; its writes, the inbox mark and the settle commit together (I6).

        Only Done commits; another outcome is returned, with everything rolled back. A row that is not ours any more
        rolls back too. The database ends a transaction that takes longer than `limit` seconds.
        """

    def release(self, claims: Sequence[Token], *, delay: float = 0.0) -> tuple[Token, ...]:
        """Give back deliveries whose attempt never started. Returns those that were not owned any more.

        What `owned` tells of may be released too: a worker need not know more of it than that (H3).
        """

    # ------------------------------------------------------------------------------- what a person does
    # Each takes the next `limit` deliveries that match, those with an id greater than `after`; `last` is the last of
    # them.

    def replay(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """Dead letters → pending, attempts from 0, `replay_count + 1`, audited (I9)."""

    def cancel(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """What waits → aborted with CANCELLED. What runs is asked to stop: its owner settles it."""

    def settle_by_hand(
        self,
        which: Filter,
        signed: Signed,
        *,
        succeeded: bool,
        result: str | None = None,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Acted:
        """Say of deliveries that do not run that they succeeded (with this JSON text as result), or never will.

        Ledger first (I5).
        """

    def purge(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """Remove dead letters for good."""

    def clear_history(
        self,
        signed: Signed,
        *,
        topic: str | None = None,
        until: datetime | None = None,
        after: tuple[int, int] = (0, 0),
        limit: int = 1000,
        dry_run: bool = False,
    ) -> Cleared:
        """Remove what succeeded before its retention is over, message and results too; keys stay remembered.

        Looks at the next `limit` rows of the history after a position; the answer says where to go on.
        """

    def set_queue(self, name: str, signed: Signed, *, paused: bool) -> None:
        """Pause or resume a queue: claims obey from the commit on."""

    def set_limit(
        self,
        name: str,
        signed: Signed,
        *,
        of: Literal["queue", "destination"],
        concurrency: int | None,
        rate: float | None,
        lasts: float | None = None,
    ) -> None:
        """Let all workers together run at most `concurrency` at once and start `rate` a second; None: no such limit.

        With `lasts`, both end after so many seconds by themselves. Workers read `limits`, and then claim no more than
        is left: exactly, and whatever workers come and go.
        """

    def set_breaker(self, destination: str, *, open_for: float, failures: int = 0) -> None:
        """Keep every worker from claiming for a destination for so many seconds (0: close it)."""

    def set_on_abort(self, destination: str, *, skip: bool) -> None:
        """Whether a dead letter blocks its lane (the default) or is skipped."""

    def limits(self) -> Limits:
        """Every limit, pause and breaker in force, and the live leases: one cheap read, made every second or so."""

    # -------------------------------------------------------------------------------------- maintenance

    def announce(self, destinations: Sequence[str]) -> None:
        """Say that a worker here has registered these destinations."""

    def expire(self, *, unknown_after: float, limit: int = 5000) -> tuple[int, int]:
        """Abort what waited past `expires_at`, and what nobody has registered for so long. Returns both numbers."""

    def announce_hooks(self, hooks: Sequence[Hook]) -> None:
        """Say that a worker here serves these hooks: from now on each is told of every end that it hears of.

        Its message commits with the end itself, whoever makes it, so it is neither lost nor doubled. A hook that nobody
        has announced for a day, while other things were, is forgotten. Other stores know of it after a second.
        """

    def follow(self) -> int:
        """Publish what follows complete batches wherever that could not be published with the end of their last member
        (its lane was being published to), once, however many ask. Returns how many they were."""

    def prune(self, *, history_ttl: float, limit: int = 5000) -> Pruned:
        """Remove what its retention has passed: never a message with a delivery, never a ledger entry in use."""

    # ------------------------------------------------------------------------------------------ reading

    def counts(self, *, max_age: float = 0.0) -> Counts:
        """Deliveries by status, destination and reason: exact when few, else sampled; at most `max_age` old."""

    def lag(self, *, stuck_after: float) -> Lag:
        """What is due and waits, what is in flight, what is stuck: in flight for more than `stuck_after` seconds, or
        without a live owner. Cost: the number of places, not of rows; beyond 10,000 of a place it is sampled.
        """

    def find(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Deliveries, newest first. `status="succeeded"` looks in the history, anything else among the others."""

    def story(self, message_id: UUID) -> Story | None:
        """Everything known about a message."""

    def workers(self) -> tuple[WorkerRow, ...]:
        """The leases there are, ended ones that nobody has reclaimed yet too, and what each holds."""

    def result(self, delivery_id: int) -> str | None:
        """The JSON text of a delivery's result, if one was kept."""

    def standing(self, message_id: UUID, destination: str) -> Standing | None:
        """Where one delivery of a message is, with its result if one was kept; None: there is no such delivery."""

    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that are told of ends now."""

    def batch(self, id: UUID) -> BatchStatus | None:
        """How far a batch is. None: there is none, or its retention has passed."""

    def entry(self, scope: str, key_hash: str) -> Entry | None:
        """A ledger entry."""

    def previews(self, message_ids: Sequence[UUID], *, largest: int = 65_536) -> dict[UUID, Preview]:
        """What is inside these messages; of one larger than `largest` bytes only its size."""

    def dead(self) -> tuple[DeadGroup, ...]:
        """Dead letters by reason and destination, the largest group first; the first 100,000 of them are counted."""

    def known(self) -> Known:
        """Every queue and destination that somebody has said something about."""

    def situation(self, delivery_id: int) -> Situation | None:
        """What decides when a delivery runs: one consistent look. None: it is not there, or it succeeded."""

    def full_gates(self, *, limit: int = 100) -> tuple[FullGate, ...]:
        """Keys that are at their limit while more of them waits, those with the most behind them first."""

    def tail(self, *, since: float, limit: int = 500) -> tuple[Event, ...]:
        """What happened after `since` (unix seconds of the database), oldest first: of each kind the last `limit`."""

    def broken(self, *, history_ttl: float, ledger_ttl: float, most: int = 10) -> dict[str, tuple[str, ...]]:
        """The invariants of docs/glossary.md that do not hold, by name, each with at most so many examples.

        One consistent snapshot: right also while workers run.
        """

    def facts(self) -> Facts:
        """What this database is and how it is set up, for a person who looks for what is wrong."""
