"""Queues and destinations: what keeps them back, and keeping them back."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Reasoned, signed
from todoku.api.request_context import RequestContext
from todoku.engine import operations
from todoku.store.destinations import Known
from todoku.store.limits import Restriction


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue somebody said something about, or in which something waits. No limit: any number."""

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    waiting: bool


class Queues(msgspec.Struct, frozen=True):
    """Queues by name."""

    items: tuple[Queue, ...]


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """A destination: its limits, its breaker, and when a worker last said that it serves it (unix seconds)."""

    name: str
    concurrency: int | None
    rate: float | None
    open_until: float | None
    failures: int
    seen_at: float | None


class Destinations(msgspec.Struct, frozen=True):
    """Destinations by name."""

    items: tuple[Destination, ...]


class LimitBody(Reasoned, frozen=True, kw_only=True):
    """The whole limit of all workers together: what is left out is not limited. `lasts`: seconds it is in force."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    lasts: Annotated[float, Meta(gt=0, le=366 * 86_400)] | None = None


class Set(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue or destination is set to now."""

    of: Literal["queue", "destination"]
    name: str
    paused: bool | None = None
    concurrency: int | None = None
    rate: float | None = None
    lasts: float | None = None


@operation("GET", "/queues", access="read")
def list_queues(context: RequestContext) -> Queues:
    """Queues, with their pauses and limits."""
    limits = {limit.name: limit for limit in context.store.limits.read().queues}
    waiting = context.store.claims.waiting(None)
    busy = {place[0] for places in (waiting.groups, waiting.suspects, waiting.lanes, waiting.gates) for place in places}
    names = sorted({*context.store.destinations.known().queues, *limits, *busy})
    return Queues(tuple(_queue(name, limits.get(name), name in busy) for name in names))


@operation("POST", "/queues/{name:path}/pause", access="operate")
def pause_queue(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Set:
    """Take nothing from a queue; what runs goes on."""
    operations.pause(context.store, where.name, signed(by, body))
    return Set(of="queue", name=where.name, paused=True)


@operation("POST", "/queues/{name:path}/resume", access="operate")
def resume_queue(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Set:
    """Take from a queue again."""
    operations.resume(context.store, where.name, signed(by, body))
    return Set(of="queue", name=where.name, paused=False)


@operation("PUT", "/queues/{name:path}/limit", access="operate")
def limit_queue(context: RequestContext, where: ByName, body: LimitBody, by: str) -> Set:
    """Limit a queue."""
    return _limited(context, "queue", where.name, body, by)


@operation("GET", "/destinations", access="read")
def list_destinations(context: RequestContext) -> Destinations:
    """Destinations, with their limits and breakers."""
    limits = {limit.name: limit for limit in context.store.limits.read().destinations}
    known = context.store.destinations.known()
    names = sorted({*known.destinations, *limits})
    return Destinations(tuple(_destination(name, limits.get(name), known) for name in names))


@operation("PUT", "/destinations/{name:path}/limit", access="operate")
def limit_destination(context: RequestContext, where: ByName, body: LimitBody, by: str) -> Set:
    """Limit a destination."""
    return _limited(context, "destination", where.name, body, by)


def _limited(context: RequestContext, of: operations.Kind, name: str, body: LimitBody, by: str) -> Set:
    operations.limit(
        context.store,
        name,
        signed(by, body),
        of=of,
        concurrency=body.concurrency,
        rate=body.rate,
        lasts=body.lasts,
    )
    return Set(of=of, name=name, concurrency=body.concurrency, rate=body.rate, lasts=body.lasts)


def _queue(name: str, limit: Restriction | None, waiting: bool) -> Queue:
    return Queue(
        name=name,
        paused=limit is not None and limit.paused,
        concurrency=None if limit is None else limit.concurrency,
        rate=None if limit is None else limit.rate,
        waiting=waiting,
    )


def _destination(name: str, limit: Restriction | None, known: Known) -> Destination:
    return Destination(
        name=name,
        concurrency=None if limit is None else limit.concurrency,
        rate=None if limit is None else limit.rate,
        open_until=None if limit is None or not limit.open_until else limit.open_until,
        failures=0 if limit is None else limit.failures,
        seen_at=known.destinations.get(name),
    )


OPERATIONS: Final = (list_queues, pause_queue, resume_queue, limit_queue, list_destinations, limit_destination)
