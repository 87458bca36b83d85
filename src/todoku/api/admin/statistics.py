"""The ledger, the audit, statistics and their time series. All operations only read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Cursor, Limit, Moment, Parameters, Text, in_utc
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.core.identity import key_hash
from todoku.engine.diagnostics.masked_json import masked
from todoku.store.audit import NumberedAudit
from todoku.store.columns import moment
from todoku.store.ledger import Entry
from todoku.store.statistics import Count, Lag, ParkedKeys, Series

_WIDTHS: Final = {"minute": 60, "hour": 3600}
_DEFAULT_BUCKETS: Final = 60
_MOST_BUCKETS: Final = 1500


class LedgerQuery(Parameters, frozen=True, kw_only=True):
    """`scope` is publish:TOPIC or effect:DESTINATION; `key` the idempotency key, or its hash from a log line."""

    scope: Text
    key: Text


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's entry of a key. Values of sensitive fields of the response are replaced by `***`."""

    scope: str
    entry: Entry
    response: Any


class AuditQuery(Parameters, frozen=True, kw_only=True):
    """Selects audit entries. A field that is left out does not filter."""

    by: Text | None = None
    action: Text | None = None
    target: Text | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Audit entries, newest first, and the cursor of the next page (null: this is the last)."""

    items: tuple[NumberedAudit, ...]
    next: str | None


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of deliveries. `exact` is false if they are estimates that were sampled `age` seconds ago."""

    counts: dict[str, int]
    by: tuple[Count, ...]
    exact: bool
    age: float
    lag: Lag
    workers: int
    parked: ParkedKeys


class SeriesQuery(Parameters, frozen=True, kw_only=True):
    """The period, by default the last 60 minutes or hours; at most 1500 of them."""

    per: Literal["minute", "hour"] = "minute"
    since: Moment | None = None
    until: Moment | None = None


@operation("GET", "/ledger", access="read")
def get_ledger_entry(context: RequestContext, query: LedgerQuery) -> LedgerEntry:
    """Returns the ledger's entry of an idempotency key."""
    store = context.store
    entry = store.ledger.entry(query.scope, key_hash(query.key)) or store.ledger.entry(query.scope, query.key)
    if entry is None:
        raise NotThere("the ledger has no entry for this key in this scope")
    response = masked(entry.response, context.settings.mask_fields)
    return LedgerEntry(scope=query.scope, entry=msgspec.structs.replace(entry, response=None), response=response)


@operation("GET", "/audit", access="read")
def list_audit(context: RequestContext, query: AuditQuery) -> Audit:
    """Lists the audit of operators' actions, newest first."""
    if query.cursor is not None and not (
        query.cursor.isascii() and query.cursor.isdecimal() and len(query.cursor) < 19
    ):
        raise Refused(422, f"{query.cursor!r} is not a cursor of this list", hint="pass `next` of the previous page")
    before = None if query.cursor is None else int(query.cursor)
    rows = context.store.audit.page(
        by=query.by, action=query.action, target=query.target, before=before, limit=query.limit + 1
    )
    items = rows[: query.limit]
    return Audit(items=items, next=str(items[-1].id) if len(rows) > query.limit else None)


@operation("GET", "/statistics", access="read")
def get_statistics(context: RequestContext) -> Statistics:
    """Counts deliveries by state and returns how far behind they are."""
    store = context.store
    counts = store.statistics.counts(max_age=5.0)
    return Statistics(
        counts={name: counts.of(name) for name in ("pending", "sending", "succeeded", "failed", "aborted")},
        by=counts.rows,
        exact=counts.exact,
        age=counts.age,
        lag=store.statistics.lag(stuck_after=context.settings.max_processing_sec),
        workers=len(store.limits.read().workers),
        parked=store.statistics.parked(),
    )


@operation("GET", "/series", access="read")
def get_series(context: RequestContext, query: SeriesQuery) -> Series:
    """Counts successes and failures per minute or hour."""
    width = _WIDTHS[query.per]
    until = in_utc(query.until, "until") or moment(context.store.ping())
    last = _round(until, width, up=True)
    since = in_utc(query.since, "since")
    first = last - _DEFAULT_BUCKETS * width if since is None else _round(since, width, up=False)
    if not 0 <= first < last <= 1 << 36 or last - first > _MOST_BUCKETS * width:
        raise Refused(422, f"the period must have 1 to {_MOST_BUCKETS} buckets", hint="`since` must be before `until`")
    return context.store.statistics.series(
        since=datetime.fromtimestamp(first, UTC), until=datetime.fromtimestamp(last, UTC), width=width
    )


def _round(when: datetime, width: int, *, up: bool) -> int:
    seconds = int(when.timestamp() // width) * width
    return seconds + width if up and seconds < when.timestamp() else seconds


OPERATIONS: Final = (get_ledger_entry, list_audit, get_statistics, get_series)
