"""Projections: list them, look at one, set the flag that its readers ask."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Reasoned, signed
from todoku.api.request_context import RequestContext
from todoku.core.msgspec_warmup import warm_up
from todoku.engine.projections.projection import ProjectionStatus, list_statuses, read_status
from todoku.store.projections import IndexRow, State


class ListedProjection(msgspec.Struct, frozen=True, kw_only=True):
    """A projection with its indexes. `why`: why it is stopped. `readers`: the flag that readers ask.

    `lag_events`: events that are not applied yet; with `lag_complete` false there are more. `oldest_age_seconds`: since
    the oldest of them was published.
    """

    name: str
    kind: str
    state: State
    why: str | None
    readers: bool
    lag_events: int
    lag_complete: bool
    oldest_age_seconds: float
    created_at: datetime
    updated_at: datetime
    indexes: tuple[IndexRow, ...]


class ListedProjections(msgspec.Struct, frozen=True):
    """Projections by name."""

    items: tuple[ListedProjection, ...]


class ReadersBody(Reasoned, frozen=True, kw_only=True):
    """`on`: whether readers are to use the projection."""

    on: bool


warm_up(ReadersBody)


class Readers(msgspec.Struct, frozen=True, kw_only=True):
    """The flag as it is now."""

    name: str
    on: bool


@operation("GET", "/projections", access="read")
def list_projections(context: RequestContext) -> ListedProjections:
    """Lists projections: their states, how far they are behind, and how far their rebuilds are."""
    return ListedProjections(tuple(_listed(one) for one in list_statuses(context.store)))


@operation("GET", "/projections/{name:path}", access="read")
def get_projection(context: RequestContext, where: ByName) -> ListedProjection:
    """Returns one projection."""
    return _listed(read_status(context.store, where.name))


@operation("PUT", "/projections/{name:path}/readers", access="operate")
def set_readers(context: RequestContext, where: ByName, body: ReadersBody, by: str) -> Readers:
    """Sets the flag that the readers of a projection ask."""
    context.store.projections.set_readable(where.name, signed(by, body), readable=body.on)
    return Readers(name=where.name, on=body.on)


def _listed(one: ProjectionStatus) -> ListedProjection:
    row, lag = one.row, one.lag
    return ListedProjection(
        name=row.name, kind=row.kind, state=row.state, why=row.why, readers=row.readable, lag_events=lag.events,
        lag_complete=lag.complete, oldest_age_seconds=lag.age, created_at=row.created_at, updated_at=row.updated_at,
        indexes=row.indexes,
    )  # fmt: skip


OPERATIONS: Final = (list_projections, get_projection, set_readers)
