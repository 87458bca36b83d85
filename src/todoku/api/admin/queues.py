"""Queues and destinations: list them with their limits, pause, resume, limit."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Reasoned, signed
from todoku.api.request_context import RequestContext
from todoku.core.msgspec_warmup import warm_up
from todoku.engine import operations
from todoku.engine.diagnostics.queue_health import QueueHealth, queue_health
from todoku.store.destinations import Known
from todoku.store.limits import Restriction


class Queues(msgspec.Struct, frozen=True):
    """Queues by name."""

    items: tuple[QueueHealth, ...]


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """A destination: its limits, its breaker, and when a worker last reported serving it (unix seconds)."""

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
    """The limit over all workers, replacing the previous one; null: unlimited. `lasts`: seconds it is in force."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    lasts: Annotated[float, Meta(gt=0, le=366 * 86_400)] | None = None


warm_up(LimitBody)


class Set(msgspec.Struct, frozen=True, kw_only=True):
    """The new settings of a queue or destination."""

    of: Literal["queue", "destination"]
    name: str
    paused: bool | None = None
    concurrency: int | None = None
    rate: float | None = None
    lasts: float | None = None


@operation("GET", "/queues", access="read")
def list_queues(context: RequestContext) -> Queues:
    """Lists queues with their depth, age, throughput, pauses and limits."""
    return Queues(queue_health(context.numbers))


@operation("POST", "/queues/{name:path}/pause", access="operate")
def pause_queue(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Set:
    """Pauses a queue: workers claim nothing from it; running deliveries continue."""
    operations.pause(context.store, where.name, signed(by, body))
    context.numbers.forget()
    return Set(of="queue", name=where.name, paused=True)


@operation("POST", "/queues/{name:path}/resume", access="operate")
def resume_queue(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Set:
    """Resumes a queue."""
    operations.resume(context.store, where.name, signed(by, body))
    context.numbers.forget()
    return Set(of="queue", name=where.name, paused=False)


@operation("PUT", "/queues/{name:path}/limit", access="operate")
def limit_queue(context: RequestContext, where: ByName, body: LimitBody, by: str) -> Set:
    """Limits a queue."""
    return _set_limit(context, "queue", where.name, body, by)


@operation("GET", "/destinations", access="read")
def list_destinations(context: RequestContext) -> Destinations:
    """Lists destinations with their limits and breakers."""
    limits = {limit.name: limit for limit in context.store.limits.read().destinations}
    known = context.store.destinations.known()
    names = sorted({*known.destinations, *limits})
    return Destinations(tuple(_destination(name, limits.get(name), known) for name in names))


@operation("PUT", "/destinations/{name:path}/limit", access="operate")
def limit_destination(context: RequestContext, where: ByName, body: LimitBody, by: str) -> Set:
    """Limits a destination."""
    return _set_limit(context, "destination", where.name, body, by)


def _set_limit(context: RequestContext, of: operations.Kind, name: str, body: LimitBody, by: str) -> Set:
    operations.limit(
        context.store,
        name,
        signed(by, body),
        of=of,
        concurrency=body.concurrency,
        rate=body.rate,
        lasts=body.lasts,
    )
    context.numbers.forget()
    return Set(of=of, name=name, concurrency=body.concurrency, rate=body.rate, lasts=body.lasts)


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
