"""Deliveries: list, get, what was tried, cancel."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import (
    Act,
    ByNumber,
    Listing,
    Reasoned,
    Status,
    filter_of,
    selected,
    signed,
)
from todoku.api.admin.shown_requests import Attempt, attempt
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine import operations
from todoku.engine.diagnostics.explanation import Because, explain
from todoku.engine.operations import ActResult
from todoku.store.deliveries import Delivery, Page
from todoku.store.filter import Filter


class DeliveryQuery(Listing, frozen=True, kw_only=True):
    """Which deliveries. Without a status: all that have not succeeded. `due`: only what should run now."""

    status: Status | None = None
    due: bool = False


class DeliveryStory(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, and what keeps it waiting, the first thing first; nothing does, if it succeeded."""

    delivery: Delivery
    because: tuple[Because, ...]


class Attempts(msgspec.Struct, frozen=True):
    """The failed attempts of a delivery, the oldest first."""

    items: tuple[Attempt, ...]


@operation("GET", "/deliveries", access="read")
def list_deliveries(context: RequestContext, query: DeliveryQuery) -> Page:
    """Deliveries, newest first."""
    which = filter_of(query, status=query.status, due=query.due)
    return context.store.deliveries.find(which, cursor=query.cursor, limit=query.limit)


@operation("GET", "/deliveries/{id}", access="read")
def get_delivery(context: RequestContext, where: ByNumber) -> DeliveryStory:
    """A delivery, and why it has not run."""
    delivery = _found(context, where.id)
    situation = None if delivery.status == "succeeded" else context.store.situation(where.id)
    return DeliveryStory(delivery=delivery, because=() if situation is None else explain(situation))


@operation("GET", "/deliveries/{id}/attempts", access="read")
def list_attempts(context: RequestContext, where: ByNumber) -> Attempts:
    """The failed attempts of a delivery, with what the receiver answered."""
    rows = context.store.attempts.of(where.id)
    if not rows:
        _found(context, where.id)
    fields = frozenset(context.settings.mask_fields)
    return Attempts(tuple(attempt(row, fields) for row in rows))


@operation("POST", "/deliveries/{id}/cancel", access="operate")
def cancel_delivery(context: RequestContext, where: ByNumber, body: Reasoned, by: str) -> ActResult:
    """Cancel a delivery: what waits becomes a dead letter, what runs is asked to stop."""
    _found(context, where.id)
    return operations.cancel(context.store, Filter(ids=(where.id,)), signed(by, body))


@operation("POST", "/deliveries/cancel", access="operate")
def cancel_deliveries(context: RequestContext, body: Act, by: str) -> ActResult:
    """Cancel many deliveries."""
    return operations.cancel(context.store, selected(body), signed(by, body), dry_run=body.dry_run)


def _found(context: RequestContext, id: int) -> Delivery:
    for status in (None, "succeeded"):
        for found in context.store.deliveries.find(Filter(ids=(id,), status=status), limit=1).items:
            return found
    raise NotThere(f"there is no delivery {id}", hint="old ones are pruned")


OPERATIONS: Final = (list_deliveries, get_delivery, list_attempts, cancel_delivery, cancel_deliveries)
