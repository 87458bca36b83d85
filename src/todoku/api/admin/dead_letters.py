"""Dead letters: list, group by reason, let run again, delete. Every act says who and why."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Act, ByNumber, Listing, Reasoned, filter_of, selected, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine import operations
from todoku.engine.operations import ActResult, Replayed
from todoku.store.deliveries import Page
from todoku.store.filter import Filter
from todoku.store.statistics import DeadGroup


class DeadQuery(Listing, frozen=True, kw_only=True):
    """Which dead letters."""


class DeadGroups(msgspec.Struct, frozen=True):
    """Dead letters by reason and destination, the largest group first."""

    items: tuple[DeadGroup, ...]


class Replay(Act, frozen=True, kw_only=True):
    """Which dead letters are to run again, at most `limit` of them, the oldest first."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


@operation("GET", "/dead-letters", access="read")
def list_dead_letters(context: RequestContext, query: DeadQuery) -> Page:
    """Dead letters, newest first."""
    return context.store.deliveries.find(filter_of(query, status="aborted"), cursor=query.cursor, limit=query.limit)


@operation("GET", "/dead-letters/reasons", access="read")
def list_reasons(context: RequestContext) -> DeadGroups:
    """Dead letters by reason and destination."""
    return DeadGroups(context.store.statistics.dead_letters())


@operation("POST", "/dead-letters/replay", access="operate")
def replay_dead_letters(context: RequestContext, body: Replay, by: str) -> Replayed:
    """Let dead letters run again, audited. `replayed` as large as `limit`: there may be more."""
    which = selected(body, status="aborted")
    done = operations.replay(context.store, which, signed(by, body), limit=body.limit, dry_run=body.dry_run)
    context.outbox.wake()
    return done


@operation("POST", "/dead-letters/{id}/replay", access="operate")
def replay_dead_letter(context: RequestContext, where: ByNumber, body: Reasoned, by: str) -> Replayed:
    """Let one dead letter run again, audited."""
    done = operations.replay(context.store, _one(context, where.id), signed(by, body))
    context.outbox.wake()
    return done


@operation("POST", "/dead-letters/delete", access="operate")
def delete_dead_letters(context: RequestContext, body: Act, by: str) -> ActResult:
    """Remove dead letters for good, audited. A body is not lost on the way to a POST, as it may be to a DELETE."""
    return operations.purge(context.store, selected(body, status="aborted"), signed(by, body), dry_run=body.dry_run)


@operation("DELETE", "/dead-letters/{id}", access="operate")
def delete_dead_letter(context: RequestContext, where: ByNumber, query: Reasoned, by: str) -> ActResult:
    """Remove one dead letter for good, audited."""
    return operations.purge(context.store, _one(context, where.id), signed(by, query))


def _one(context: RequestContext, id: int) -> Filter:
    which = Filter(ids=(id,), status="aborted")
    if not context.store.deliveries.find(which, limit=1).items:
        raise NotThere(f"there is no dead letter {id}", hint="it was replayed or deleted, or never died")
    return which


OPERATIONS: Final = (
    list_dead_letters,
    list_reasons,
    replay_dead_letters,
    replay_dead_letter,
    delete_dead_letters,
    delete_dead_letter,
)
