"""Bulk acts: count what an act would change, start it beside the request, look at its progress, stop it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Act, ById, Reasoned, Status, act_filter, filter_of, signed
from todoku.api.admin.search import SearchText
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.scope import Scope, allows
from todoku.engine.bulk_acts import ActName, BulkAct
from todoku.engine.search import Reader, Searcher
from todoku.store.deliveries import Filter


class StartAct(Act, frozen=True, kw_only=True):
    """What to do with the selected deliveries: at most `limit` of them, oldest first, at most `rate` a second.

    `replay` and `purge` take dead letters, `again` what succeeded, `cancel` what waits or runs. `dry_run`: only count.
    """

    act: ActName
    q: SearchText | None = None
    """A search instead of the other fields: the newest 10,000 that it finds."""
    status: Status | None = None
    limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    rate: Annotated[float, Meta(ge=0.01, le=1_000_000)] | None = None


class StartedAct(msgspec.Struct, frozen=True):
    """The started act (null after a dry run), and how many deliveries it will change (null: too many to count).

    `skipped`: why it will pass over others that were named. `complete` is false if a search finds more than it takes.
    """

    number: int | None
    skipped: dict[str, int]
    act: BulkAct | None
    complete: bool = True


class BulkActList(msgspec.Struct, frozen=True):
    """The acts that this process runs or remembers, newest first."""

    items: tuple[BulkAct, ...]


@operation("POST", "/acts", access="operate")
def start_act(context: RequestContext, body: StartAct, by: str, scopes: tuple[Scope, ...]) -> StartedAct:
    """Starts an act on many deliveries, which runs on after the response; with `dry_run`, only counts them."""
    acts = context.box.deliveries.bulk_acts
    which, complete = _selection(context, body, scopes)
    if body.dry_run:
        counted = acts.preview(body.act, which, limit=body.limit)
        return StartedAct(counted.number, counted.skipped, None, complete)
    selected = () if body.q is None else (body.q,)
    started = acts.start(body.act, which, signed(by, body), limit=body.limit, rate=body.rate, selected=selected)
    return StartedAct(started.total, {}, started, complete)


def _selection(context: RequestContext, body: StartAct, scopes: tuple[Scope, ...]) -> tuple[Filter, bool]:
    """Returns the filter of an act, and whether it is all that was asked for.

    Raises Refused (422) if it would match everything without `all`, or has both a search and other fields.
    """
    if body.q is None:
        return act_filter(body, **({} if body.status is None else {"status": body.status})), True
    if body.ids is not None or body.status is not None or filter_of(body) != Filter():
        raise Refused(422, "`q` and other fields cannot both be given", hint="write them as words of the search")
    reader: Reader = "admin" if allows(scopes, "admin") else "viewer"
    found = Searcher(context.store, context.settings).find_ids(body.q, reader=reader)
    return Filter(ids=found.ids), found.complete


@operation("GET", "/acts", access="read")
def list_acts(context: RequestContext) -> BulkActList:
    """Lists the bulk acts that run, wait or have ended in this daemon."""
    return BulkActList(context.box.deliveries.bulk_acts.list())


@operation("GET", "/acts/{id}", access="read")
def get_act(context: RequestContext, where: ById) -> BulkAct:
    """Returns a bulk act and how far it is."""
    return context.box.deliveries.bulk_acts.get(where.id)


@operation("POST", "/acts/{id}/stop", access="operate")
def stop_act(context: RequestContext, where: ById, body: Reasoned, by: str) -> BulkAct:
    """Stops a bulk act after the batch that it is in. What it changed stays changed."""
    return context.box.deliveries.bulk_acts.stop(where.id, signed(by, body))


OPERATIONS: Final = (start_act, list_acts, get_act, stop_act)
