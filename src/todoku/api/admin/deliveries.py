"""Deliveries: list, get, list failed attempts, replay, cancel."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import (
    Act,
    ByNumber,
    Listing,
    Parameters,
    Reasoned,
    Status,
    act_filter,
    filter_of,
    signed,
)
from todoku.api.admin.shown_requests import Attempt, masked_attempt
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine import operations
from todoku.engine.diagnostics.explanation import Because, explain
from todoku.engine.operations import ActResult, Replayed
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter, Page
from todoku.store.statistics import DeadGroup

# ------------------------------------------------------------
# Dead letters: list, group by reason, replay, delete. Each change is audited with its author and reason.


class DeadQuery(Listing, frozen=True, kw_only=True):
    """Selects dead letters."""


class GroupQuery(Parameters, frozen=True, kw_only=True):
    """How to group dead letters: always by reason and destination."""

    by_fingerprint: bool = False
    """Also by the fingerprint of the traceback, so that each cause is a group."""


class DeadGroups(msgspec.Struct, frozen=True):
    """Dead letters in groups, largest group first."""

    items: tuple[DeadGroup, ...]


class Replay(Act, frozen=True, kw_only=True):
    """Selects the dead letters to replay: at most `limit`, oldest first."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


@operation("GET", "/dead-letters", access="read")
def list_dead_letters(context: RequestContext, query: DeadQuery) -> Page:
    """Lists dead letters, newest first."""
    return context.store.deliveries.find(filter_of(query, status="aborted"), cursor=query.cursor, limit=query.limit)


@operation("GET", "/dead-letters/reasons", access="read")
def list_reasons(context: RequestContext, query: GroupQuery) -> DeadGroups:
    """Counts dead letters by reason and destination."""
    return DeadGroups(context.store.statistics.dead_letters(by_fingerprint=query.by_fingerprint))


@operation("POST", "/dead-letters/replay", access="operate")
def replay_dead_letters(context: RequestContext, body: Replay, by: str) -> Replayed:
    """Replays dead letters, audited. More may match if `replayed` equals `limit`."""
    which = act_filter(body, status="aborted")
    replayed = operations.replay(context.store, which, signed(by, body), limit=body.limit, dry_run=body.dry_run)
    context.outbox.wake()
    return replayed


@operation("POST", "/dead-letters/{id}/replay", access="operate")
def replay_dead_letter(context: RequestContext, where: ByNumber, body: Reasoned, by: str) -> Replayed:
    """Replays one dead letter, audited."""
    replayed = operations.replay(context.store, _one(context, where.id), signed(by, body))
    context.outbox.wake()
    return replayed


@operation("POST", "/dead-letters/delete", access="operate")
def delete_dead_letters(context: RequestContext, body: Act, by: str) -> ActResult:
    """Deletes dead letters permanently, audited. A POST because proxies may drop the body of a DELETE."""
    return operations.purge(context.store, act_filter(body, status="aborted"), signed(by, body), dry_run=body.dry_run)


@operation("DELETE", "/dead-letters/{id}", access="operate")
def delete_dead_letter(context: RequestContext, where: ByNumber, query: Reasoned, by: str) -> ActResult:
    """Deletes one dead letter permanently, audited."""
    return operations.purge(context.store, _one(context, where.id), signed(by, query))


def _one(context: RequestContext, id: int) -> Filter:
    which = Filter(ids=(id,), status="aborted")
    if not context.store.deliveries.find(which, limit=1).items:
        raise NotThere(f"there is no dead letter {id}", hint="it may have been replayed or deleted")
    return which


DEAD_LETTER_OPERATIONS: Final = (
    list_dead_letters,
    list_reasons,
    replay_dead_letters,
    replay_dead_letter,
    delete_dead_letters,
    delete_dead_letter,
)


class DeliveryQuery(Listing, frozen=True, kw_only=True):
    """Selects deliveries. Without `status`: all that have not succeeded. `due`: only those that should run now."""

    status: Status | None = None
    due: bool = False


class DeliveryStory(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery and the reasons why it waits, the most immediate first; empty if it succeeded."""

    delivery: Delivery
    because: tuple[Because, ...]


class Attempts(msgspec.Struct, frozen=True):
    """The failed attempts of a delivery, oldest first."""

    items: tuple[Attempt, ...]


@operation("GET", "/deliveries", access="read")
def list_deliveries(context: RequestContext, query: DeliveryQuery) -> Page:
    """Lists deliveries, newest first."""
    which = filter_of(query, status=query.status, due=query.due)
    return context.store.deliveries.find(which, cursor=query.cursor, limit=query.limit)


@operation("GET", "/deliveries/{id}", access="read")
def get_delivery(context: RequestContext, where: ByNumber) -> DeliveryStory:
    """Returns a delivery and why it has not run."""
    delivery = _get(context, where.id)
    situation = None if delivery.status == "succeeded" else context.store.situation(where.id)
    return DeliveryStory(delivery=delivery, because=() if situation is None else explain(situation))


@operation("GET", "/deliveries/{id}/attempts", access="read")
def list_attempts(context: RequestContext, where: ByNumber) -> Attempts:
    """Lists the failed attempts of a delivery with the receiver's responses."""
    rows = context.store.attempts.of(where.id)
    if not rows:
        _get(context, where.id)  # raises NotThere
    fields = frozenset(context.settings.mask_fields)
    return Attempts(tuple(masked_attempt(row, fields) for row in rows))


@operation("POST", "/deliveries/{id}/cancel", access="operate")
def cancel_delivery(context: RequestContext, where: ByNumber, body: Reasoned, by: str) -> ActResult:
    """Cancels a delivery: a waiting one becomes a dead letter, a running one is requested to stop."""
    _get(context, where.id)  # raises NotThere
    return operations.cancel(context.store, Filter(ids=(where.id,)), signed(by, body))


class Repeat(Act, frozen=True, kw_only=True):
    """Selects the deliveries to replay: at most `limit`, oldest first.

    `again`: those that succeeded instead of dead letters, each as a new message to its destination alone.
    """

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    again: bool = False


class RepeatOne(Reasoned, frozen=True, kw_only=True):
    """`again`: run the delivery although it succeeded, as a new message to its destination alone."""

    again: bool = False
    dry_run: bool = False


@operation("POST", "/deliveries/{id}/replay", access="operate")
def replay_delivery(context: RequestContext, where: ByNumber, body: RepeatOne, by: str) -> Replayed:
    """Replays a dead letter; with `again`, runs a succeeded delivery again as a new message."""
    _get(context, where.id)  # raises NotThere
    which = Filter(ids=(where.id,))
    done = _replay(context, which, signed(by, body), again=body.again, limit=1, dry_run=body.dry_run)
    return operations.refuse_successes(done)


@operation("POST", "/deliveries/replay", access="operate")
def replay_deliveries(context: RequestContext, body: Repeat, by: str) -> Replayed:
    """Replays all matching dead letters; with `again`, runs all matching successes again as new messages."""
    author = signed(by, body)
    return _replay(context, act_filter(body), author, again=body.again, limit=body.limit, dry_run=body.dry_run)


def _replay(
    context: RequestContext, which: Filter, author: Signed, *, again: bool, limit: int, dry_run: bool
) -> Replayed:  # fmt: skip
    if again:
        route_to = context.box.declarations.route_to
        done = operations.repeat(
            context.outbox, which, author, route_to=route_to, limit=limit, dry_run=dry_run
        )  # fmt: skip
    else:
        done = operations.replay(context.store, which, author, limit=limit, dry_run=dry_run)
    context.outbox.wake()
    return done


@operation("POST", "/deliveries/cancel", access="operate")
def cancel_deliveries(context: RequestContext, body: Act, by: str) -> ActResult:
    """Cancels all matching deliveries."""
    return operations.cancel(context.store, act_filter(body), signed(by, body), dry_run=body.dry_run)


def _get(context: RequestContext, id: int) -> Delivery:
    if (found := context.store.deliveries.get(id)) is not None:
        return found
    raise NotThere(f"there is no delivery {id}", hint="deliveries older than the retention are pruned")


OPERATIONS: Final = (
    list_deliveries,
    get_delivery,
    list_attempts,
    replay_delivery,
    replay_deliveries,
    cancel_delivery,
    cancel_deliveries,
)
