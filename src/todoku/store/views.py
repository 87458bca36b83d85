"""What people look at: values that only reading returns."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.http_request import served_as
from todoku.store.values import Delivery, Limits, WorkerRow


class Preview(msgspec.Struct, frozen=True):
    """What is inside a message, if it is JSON and not too large to be shown; and its size in bytes."""

    payload: str | None
    size: int
    content_type: str


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead letters of one reason and destination; the newest of them is the example."""

    reason: str
    destination: str
    number: int
    since: datetime
    until: datetime
    newest: int
    error: str | None


class Known(msgspec.Struct, frozen=True):
    """Queues somebody said something about, and destinations, with the time a worker last announced each (or never)."""

    queues: tuple[str, ...]
    destinations: dict[str, float | None]

    def seen(self, destination: str) -> float | None:
        """When a worker last announced that it serves this one, itself or (of a host) every one; None: never."""
        names = (destination, served_as(destination))
        return max((at for name in names if (at := self.destinations.get(name)) is not None), default=None)


class LaneRow(msgspec.Struct, frozen=True):
    """A lane: who has it, what comes next in it, and the dead letter that parks it."""

    worker: UUID | None
    ready_at: float
    failures: int
    parked: bool
    head: Delivery | None
    blocker: Delivery | None


class GateRow(msgspec.Struct, frozen=True):
    """The limit of one key: so many at once, so many a second; `running` now, and no start before `paced_until`."""

    key: str
    concurrency: int | None
    rate: float | None
    running: int
    paced_until: float | None


class FullGate(msgspec.Struct, frozen=True):
    """A key at its limit, and how many of its deliveries wait: counted up to a thousand."""

    queue: str
    destination: str
    key: str
    concurrency: int
    rate: float | None
    running: int
    waiting: int


class Situation(msgspec.Struct, frozen=True):
    """Everything that decides when a delivery runs, as of one moment. Times are unix seconds of the database."""

    now: float
    delivery: Delivery
    expires_at: float | None
    claimed_at: float | None
    limits: Limits
    known: Known
    workers: tuple[WorkerRow, ...]
    lane: LaneRow | None
    queue_in_flight: int
    destination_in_flight: int
    gate: GateRow | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that happened: a publish, the end of an attempt, or an act of a person. `mark` is its own."""

    at: datetime
    what: str
    delivery_id: int | None
    message_id: UUID | None
    topic: str | None
    destination: str | None
    told: str | None
    mark: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database is and how it is set up; None where a kind of database has no such thing."""

    describe: str
    latest: int
    version: int | None = None
    durable: bool
    writable: bool
    wal_safe: bool | None = None
    free_bytes: int | None = None
    connections_used: int | None = None
    connections_max: int | None = None
    pooled: bool | None = None
    shared_files: tuple[str, ...] | None = None
    """Files of the database, with their modes, that not only their owner may use."""
    encoding: str = "UTF8"
    """In which characters are stored."""
    no_schema: bool = False
    """Only the search path says where the tables are, and it names no schema that exists."""
    schemas: tuple[str, ...] = ()
    """Where there are tables of todoku, if nothing but the search path says which of them are meant."""
    stray: int = 0
    """History rows that found no partition of their day."""
