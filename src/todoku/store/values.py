"""What goes into the store and comes out of it, apart from the values of the line (`core.message`)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.http_request import served_as
from todoku.core.message import Claimed
from todoku.core.msgspec_warmup import learned
from todoku.core.outcome import Response

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

WorkerState = Literal["running", "idle", "draining"]
"""What a worker's row says it does: it claims, it sleeps until it is woken, or it is about to end."""


class Slice(msgspec.Struct, frozen=True):
    """A part of what waits: one (queue, destination, priority), from a position on, at most `most` rows."""

    queue: str
    destination: str
    priority: int
    after_at: float = 0.0
    after_id: int = 0
    most: int = 500


class Gated(msgspec.Struct, frozen=True):
    """A (queue, destination) whose keys have a limit each: so many at once, so many a second; None: any number."""

    queue: str
    destination: str
    concurrency: int | None = None
    rate: float | None = None


class Counted(msgspec.Struct, frozen=True):
    """The names a claim has to count, because they have limits; `most` of what they hold back, all together."""

    queues: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()
    most: int = 1 << 30

    def __bool__(self) -> bool:
        return bool(self.queues or self.destinations)

    def has(self, queue: str, destination: str) -> bool:
        """Whether a limit is on this place."""
        return queue in self.queues or destination in self.destinations


UNCOUNTED: Final = Counted()


class Waiting(msgspec.Struct, frozen=True):
    """Where work waits, due or not: (queue, destination, priority), and (queue, destination) of the others."""

    groups: tuple[tuple[str, str, int], ...]
    suspects: tuple[tuple[str, str], ...]
    lanes: tuple[tuple[str, str], ...]
    gates: tuple[tuple[str, str, float], ...] = ()
    """Where a key may start something, with the seconds until it is to be looked at."""

    def only(self, destinations: Collection[str]) -> Waiting:
        """Of this what waits for these destinations; one that is a scheme stands for every host."""

        def served(place: tuple[str, str] | tuple[str, str, float]) -> bool:
            return place[1] in destinations or served_as(place[1]) in destinations

        return Waiting(
            tuple(filter(served, self.groups)), tuple(filter(served, self.suspects)), tuple(filter(served, self.lanes)),
            tuple(filter(served, self.gates)),
        )  # fmt: skip


class Held(msgspec.Struct, frozen=True):
    """A delivery the database says a worker owns: a token good enough to release it (H3)."""

    id: int
    epoch: int
    cancel_requested: bool
    lane: int | None
    worker: UUID
    gate: int | None = None


class SettleReport(msgspec.Struct, frozen=True):
    """What did not settle. `lost`: not ours any more, drop it. `stuck`: a row was locked, settle it again."""

    lost: tuple[Claimed, ...] = ()
    stuck: tuple[Claimed, ...] = ()


class Transacted(Enum):
    """How a transactional handler's commit ended: settled with it, or rolled back because the row was not ours."""

    SETTLED = "settled"
    LOST = "lost"


class Reclaimed(msgspec.Struct, frozen=True):
    """What a reclaim found: workers whose lease ended, deliveries freed, deliveries given up."""

    workers: int
    freed: int
    aborted: int


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries; what is None does not filter."""

    ids: tuple[int, ...] | None = None
    message_id: UUID | None = None
    status: str | None = None
    topic: str | None = None
    destination: str | None = None
    queue: str | None = None
    reason: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    due: bool = False


class Signed(msgspec.Struct, frozen=True):
    """Who does it and why: every act of a person has both, and leaves them in the audit."""

    by: str
    why: str


class Acted(msgspec.Struct, frozen=True):
    """What an act of a person came to: the deliveries it changed, and why others were passed over."""

    matched: int
    changed: tuple[int, ...]
    skipped: dict[str, int]
    last: int | None = None
    """The last delivery it looked at: where the next batch goes on. None: nothing matched."""


class Cleared(msgspec.Struct, frozen=True):
    """Finished deliveries that were removed, and where the next batch goes on (None: that was the last)."""

    number: int
    next: tuple[int, int] | None


class Delivery(msgspec.Struct, frozen=True):
    """A delivery as people look at it."""

    id: int
    message_id: UUID | None
    topic: str | None
    key: str | None
    destination: str
    queue: str
    lane: int | None
    priority: int
    status: str
    attempts: int
    max_attempts: int
    lost: int
    snoozes: int
    replay_count: int
    epoch: int
    worker: UUID | None
    cancel_requested: bool
    next_run_at: datetime
    created_at: datetime | None
    updated_at: datetime
    reason: str | None
    error: str | None


class Standing(msgspec.Struct, frozen=True):
    """Where a delivery is now, and the JSON text of its result if one was kept."""

    id: int
    status: str
    reason: str | None
    error: str | None
    result: str | None


class Page(msgspec.Struct, frozen=True):
    """Some deliveries, newest first, and the cursor of the next page (None: there is none)."""

    items: tuple[Delivery, ...]
    next: str | None


class AttemptRow(msgspec.Struct, frozen=True):
    """One failed attempt."""

    delivery_id: int
    replay: int
    number: int
    epoch: int
    started_at: datetime | None
    ended_at: datetime
    reason: str
    error: str | None
    worker: UUID | None
    response: Response | None = None
    """What the receiver answered, if it was asked over HTTP and did."""


class AuditRow(msgspec.Struct, frozen=True):
    """One act of a person."""

    at: datetime
    by: str
    action: str
    target: str
    why: str


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it is stored."""

    seq: int
    id: UUID
    topic: str
    type: str
    key: str | None
    payload: str | None
    payload_bytes: bytes | None
    content_type: str
    headers: str | None
    labels: str | None
    created_at: datetime


class Story(msgspec.Struct, frozen=True):
    """Everything known about a message: its deliveries, their failed attempts, what people did."""

    message: StoredMessage
    deliveries: tuple[Delivery, ...]
    attempts: tuple[AttemptRow, ...]
    audit: tuple[AuditRow, ...]


class Entry(msgspec.Struct, frozen=True):
    """A ledger entry."""

    digest: str
    state: str
    message_id: UUID | None
    http_status: int | None
    response: str | None
    created_at: datetime
    updated_at: datetime


class Count(msgspec.Struct, frozen=True):
    """How many deliveries have this status, destination and reason."""

    status: str
    destination: str
    reason: str
    number: int


class Counts(msgspec.Struct, frozen=True):
    """Deliveries by status, destination and reason. `exact` is False where they were sampled."""

    rows: tuple[Count, ...]
    succeeded: int
    exact: bool
    age: float = 0.0

    def of(self, status: str) -> int:
        """How many deliveries are in `status`."""
        if status == "succeeded":
            return self.succeeded
        return sum(row.number for row in self.rows if row.status == status)


learned(Counts)


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far behind: `due` and taken by nobody, the `oldest` of them due for so many seconds; held by workers
    (`sending`), for too long or by nobody alive (`stuck`); `dead` letters. `exact` is False where it was sampled."""

    due: int
    oldest: float
    sending: int
    stuck: int
    dead: int
    exact: bool


class Restriction(msgspec.Struct, frozen=True):
    """What keeps a queue or destination back: paused, so many at once, so many a second, or an open breaker.

    `concurrency` and `rate` hold for all workers together. `open_until` is unix seconds, 0 where nothing is open.
    """

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    open_until: float
    failures: int


class Limits(msgspec.Struct, frozen=True):
    """Every limit in force, and the workers there are: the ids of live leases, sorted."""

    queues: tuple[Restriction, ...]
    destinations: tuple[Restriction, ...]
    workers: tuple[UUID, ...]


class WorkerRow(msgspec.Struct, frozen=True):
    """A lease, and how many deliveries it holds."""

    id: UUID
    name: str
    state: str
    started_at: datetime
    expires_at: datetime
    held: int


class Pruned(msgspec.Struct, frozen=True):
    """What prune removed, and `stray`: history rows that found no partition of their day (an alarm)."""

    messages: int = 0
    ledger: int = 0
    attempts: int = 0
    results: int = 0
    inbox: int = 0
    history: int = 0
    stray: int = 0
    batches: int = 0
    secrets: int = 0
    queues: int = 0
    cancelled: int = 0


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is: its members that are `open`, `succeeded` or `aborted`. `done`: nothing follows any more."""

    id: UUID
    on: str
    total: int
    open: int
    succeeded: int
    aborted: int
    done: bool
    created_at: datetime
    done_at: datetime | None


class Migrated(msgspec.Struct, frozen=True):
    """What a migration did: the versions it applied, and the version the schema has now."""

    applied: tuple[int, ...]
    version: int


def moment(unix_seconds: float) -> datetime:
    """Unix seconds as an aware datetime, exact to the microsecond."""
    return datetime.fromtimestamp(round(unix_seconds, 6), UTC)


def moment_or_none(unix_seconds: float | None) -> datetime | None:
    """`moment`, of what may be absent."""
    return None if unix_seconds is None else moment(unix_seconds)
