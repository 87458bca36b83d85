"""Dead letters: list, group by reason, replay, delete. Each change is audited with its author and reason."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Act, ByNumber, Listing, Reasoned, act_filter, filter_of, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine import operations
from todoku.engine.operations import ActResult, Replayed
from todoku.store.deliveries import Filter, Page
from todoku.store.statistics import DeadGroup


class DeadQuery(Listing, frozen=True, kw_only=True):
    """Selects dead letters."""


class DeadGroups(msgspec.Struct, frozen=True):
    """Dead letters grouped by reason and destination, largest group first."""

    items: tuple[DeadGroup, ...]


class Replay(Act, frozen=True, kw_only=True):
    """Selects the dead letters to replay: at most `limit`, oldest first."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


@operation("GET", "/dead-letters", access="read")
def list_dead_letters(context: RequestContext, query: DeadQuery) -> Page:
    """Lists dead letters, newest first."""
    return context.store.deliveries.find(filter_of(query, status="aborted"), cursor=query.cursor, limit=query.limit)


@operation("GET", "/dead-letters/reasons", access="read")
def list_reasons(context: RequestContext) -> DeadGroups:
    """Counts dead letters by reason and destination."""
    return DeadGroups(context.store.statistics.dead_letters())


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


OPERATIONS: Final = (
    list_dead_letters,
    list_reasons,
    replay_dead_letters,
    replay_dead_letter,
    delete_dead_letters,
    delete_dead_letter,
)
