"""Events of HTTP requests, newest first, derived from the rows of messages, attempts, deliveries and history.

Both the start and the end of an attempt are events. A request that succeeded at once has no stored attempt: it has only
CREATED and DELIVERED. Pruned rows have no events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, get_args
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import HttpRequest, request_of
from todoku.core.outcome import Response
from todoku.core.redaction import redact_request
from todoku.engine.http.requests import visible_response
from todoku.engine.outbox import Outbox
from todoku.store.attempts import Attempt
from todoku.store.deliveries import Delivery, Filter
from todoku.store.messages import StoredRequest
from todoku.store.request_events import HIGHEST, Kind, Past, Position, created_at, micros, past_attempt, past_delivery
from todoku.store.store import Store

State = Literal[
    "CREATED", "ACTIVE", "ERROR", "RETRY", "CANCEL_REQUESTED", "CANCELED", "FAILED", "DELIVERED", "IN_PROGRESS"
]  # fmt: skip
STEPS: Final[tuple[State, ...]] = get_args(State)
"""The states in the order in which a message passes them; orders events of the same moment."""

_KINDS: Final[tuple[Kind, ...]] = ("created", "sending", "tried", "died", "delivered")
_OF_STATE: Final[dict[str, tuple[Kind, ...]]] = {
    "CREATED": ("created",),
    "ACTIVE": ("sending", "tried"),
    "IN_PROGRESS": ("sending",),
    "ERROR": ("tried",),
    "RETRY": ("tried",),
    "FAILED": ("died", "tried"),
    "CANCEL_REQUESTED": ("sending", "died"),
    "CANCELED": ("died",),
    "DELIVERED": ("delivered",),
}
"""The kinds of rows that each state is read from; a filter by states reads no others."""

_DEFAULT_STATES: Final = tuple(state for state in STEPS if state != "IN_PROGRESS")
"""IN_PROGRESS duplicates ACTIVE for running requests: returned only if the filter names it."""

_ROUNDS: Final = 20
_LEAST: Final = 200

Key = tuple[int, int, int, int, int]
"""Microseconds, kind, id, sub, step: unique for each event."""

_END: Final[Key] = (253_402_214_400_000_000, len(_KINDS), HIGHEST, HIGHEST, len(STEPS))
"""After the year 9999."""


class HttpEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a request. `attempt` counts from 1; `next_at`: the time of the next attempt."""

    key: Key
    at: datetime
    state: State
    message_id: UUID
    request: HttpRequest
    created_at: datetime
    attempt: int | None = None
    reason: str | None = None
    error: str | None = None
    response: Response | None = None
    next_at: datetime | None = None


class RequestEventPage(msgspec.Struct, frozen=True):
    """Events, newest first, and the cursor of the next page (None: this is the last)."""

    items: tuple[HttpEvent, ...]
    cursor: str | None


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events of requests that `which` matches, in `states` (empty: all), from `since` on, before `until`."""

    which: Filter = Filter()
    states: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


EVERYTHING: Final = EventFilter()


def find(
    outbox: Outbox, event_filter: EventFilter = EVERYTHING, *, cursor: str | None = None, limit: int = 1000
) -> RequestEventPage:
    """Returns one page of events. A filter with few matches may return a short page with a cursor."""
    if unknown := set(event_filter.states) - set(STEPS):
        raise InvalidMessage(f"state cannot be {sorted(unknown)[0][:64]!r}", hint=", ".join(STEPS))
    before = _before(event_filter) if cursor is None else _key(cursor)
    page = (_of_messages if event_filter.which.message_ids else _of_all)(outbox.store, event_filter, before, limit)
    return RequestEventPage(_with_responses(outbox.store, page.items), page.cursor)


# ------------------------------------------------------------------------------------------------ pages


def _of_all(store: Store, event_filter: EventFilter, before: Key, limit: int) -> RequestEventPage:
    """Returns events of all requests, reading a bounded number of rows."""
    kinds = {kind for state in event_filter.states for kind in _OF_STATE[state]} or set(_KINDS)
    found: list[HttpEvent] = []
    for _ in range(_ROUNDS):
        events, horizon = _round(store, sorted(kinds), before, event_filter, max(_LEAST, limit + 1))
        for event in (event for event in events if _matches(event_filter, event)):
            if len(found) == limit:
                return RequestEventPage(tuple(found), _cursor(found[-1].key))
            found.append(event)
        if horizon is None:
            return RequestEventPage(tuple(found), None)
        before = horizon
    return RequestEventPage(tuple(found), _cursor(before))


def _round(
    store: Store, kinds: Sequence[Kind], before: Key, event_filter: EventFilter, most: int
) -> tuple[list[HttpEvent], Key | None]:
    """Returns the next events, newest first, down to the key to which every kind was read; None: all was read."""
    since = 0 if event_filter.since is None else micros(event_filter.since)
    positions = {kind: _position(kind, before) for kind in kinds}
    page = store.request_events.page(positions, event_filter.which, since=since, limit=most)
    horizon = max((_row_key(kind, rows[-1]) for kind, rows in page.items() if len(rows) == most), default=None)
    events = [
        event
        for event in _events(store, [(kind, past) for kind, rows in page.items() for past in rows])
        if event.key < before and (horizon is None or event.key >= horizon)
    ]
    return sorted(events, key=lambda event: event.key, reverse=True), horizon


def _position(kind: Kind, before: Key) -> Position:
    """Returns the position from which a kind is read, inclusive: rows of one moment are ordered by kind."""
    at, rank, id, sub, _ = before
    own_rank = _KINDS.index(kind)
    if own_rank == rank:
        return at, id, sub
    return (at if own_rank < rank else at - 1), HIGHEST, HIGHEST


def _row_key(kind: Kind, past: Past) -> Key:
    at, id, sub = past.position
    return at, _KINDS.index(kind), id, sub, 0


def _of_messages(store: Store, event_filter: EventFilter, before: Key, limit: int) -> RequestEventPage:
    """Returns events of the given messages; all their rows are read, since they are few."""
    ids = list(dict.fromkeys(event_filter.which.message_ids))
    pasts: list[tuple[Kind, Past]] = [
        ("created", Past((created_at(id), id.int, 0), id, stored.created_at))
        for id, stored in store.messages.requests(ids).items()
    ]
    rows = store.deliveries.of_requests(ids)
    pasts += [(_KIND_OF[row.status], past_delivery(row)) for row in rows if row.status in _KIND_OF]
    pasts += [("tried", past_attempt(row)) for row in store.attempts.of_all([row.id for row in rows])]
    found = [event for event in _events(store, pasts) if event.key < before and _matches(event_filter, event)]
    events = sorted(found, key=lambda event: event.key, reverse=True)
    return RequestEventPage(tuple(events[:limit]), _cursor(events[limit - 1].key) if len(events) > limit else None)


_KIND_OF: Final[dict[str, Kind]] = {"sending": "sending", "aborted": "died", "succeeded": "delivered"}


def _matches(event_filter: EventFilter, event: HttpEvent) -> bool:
    """Returns whether the event itself matches; the database has already filtered by request."""
    return (
        event.state in (event_filter.states or _DEFAULT_STATES)
        and (event_filter.since is None or event.at >= event_filter.since)
        and (event_filter.until is None or event.at < event_filter.until)
        and (
            not event_filter.which.response_statuses
            or (event.response.status if event.response else 0) in event_filter.which.response_statuses
        )
    )


# ---------------------------------------------------------------------------------------------- events


def _events(store: Store, pasts: Sequence[tuple[Kind, Past]]) -> Iterator[HttpEvent]:
    """Yields the events of rows: one or a few for each row."""
    requests = store.messages.requests(list({past.message_id for _, past in pasts if past.message_id is not None}))
    for kind, past in pasts:
        stored = requests.get(past.message_id) if past.message_id is not None else None
        request = None if stored is None else request_of(stored.headers)
        if stored is not None and request is not None:
            yield from _of_row(kind, past, stored, redact_request(request))


def _of_row(kind: Kind, past: Past, stored: StoredRequest, request: HttpRequest) -> Iterator[HttpEvent]:
    at, id, sub = past.position

    def event(state: State, when: datetime) -> HttpEvent:
        return HttpEvent(
            key=(at, _KINDS.index(kind), id, sub, STEPS.index(state)), at=when, state=state,
            message_id=stored.message_id, request=request, created_at=stored.created_at,
        )  # fmt: skip

    if past.attempt is not None:
        yield from _of_attempt(past.attempt, event)
    elif past.delivery is not None:
        yield from _of_delivery(past.delivery, event)
    else:
        yield event("CREATED", stored.created_at)


def _of_attempt(row: Attempt, event: Callable[[State, datetime], HttpEvent]) -> Iterator[HttpEvent]:
    yield event("ACTIVE", row.started_at or row.ended_at)
    states: list[State] = ["ERROR"]
    if not row.final:
        states.append("RETRY")
    elif not row.dead:
        states.append("FAILED")
    for state in states:
        yield msgspec.structs.replace(
            event(state, row.ended_at),
            attempt=row.number, reason=row.reason, error=row.error, response=visible_response(row.response),
        )  # fmt: skip


def _of_delivery(row: Delivery, event: Callable[[State, datetime], HttpEvent]) -> Iterator[HttpEvent]:
    for state, when in _states(row):
        yield msgspec.structs.replace(event(state, when), attempt=row.attempts, reason=row.reason, error=row.error)


def _states(row: Delivery) -> Iterator[tuple[State, datetime]]:
    match row.status:
        case "sending":
            yield "ACTIVE", row.claimed_at or row.updated_at
            yield "IN_PROGRESS", row.claimed_at or row.updated_at
            if row.cancel_requested:
                yield "CANCEL_REQUESTED", row.updated_at
        case "aborted" if row.reason == "CANCELLED":
            yield "CANCEL_REQUESTED", row.updated_at
            yield "CANCELED", row.updated_at
        case "aborted":
            yield "FAILED", row.updated_at
        case "succeeded":
            yield "DELIVERED", row.updated_at
        case _:
            return


def _with_responses(store: Store, events: Sequence[HttpEvent]) -> tuple[HttpEvent, ...]:
    """Adds the response to the last attempt to the FAILED events of dead letters."""
    died = _KINDS.index("died")
    last = store.attempts.last([event.key[2] for event in events if event.key[1] == died])
    return tuple(
        msgspec.structs.replace(event, response=visible_response(last[event.key[2]].response))
        if event.key[1] == died and event.state == "FAILED" and event.key[2] in last
        else event
        for event in events
    )


# ---------------------------------------------------------------------------------------------- cursors


def _before(event_filter: EventFilter) -> Key:
    if event_filter.until is None:
        return _END
    return (micros(event_filter.until + timedelta(milliseconds=1)), *_END[1:])


def _cursor(key: Key) -> str:
    return ".".join(map(str, key))


def _key(cursor: str) -> Key:
    parts = cursor.split(".")
    if len(parts) != len(_END) or not all(part.isdecimal() and len(part) < 40 for part in parts):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass the cursor of the previous page")
    at, rank, id, sub, step = map(int, parts)
    if at > _END[0] or rank > len(_KINDS) or sub > HIGHEST or (id > HIGHEST and rank != 0) or id >= 1 << 128:
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass the cursor of the previous page")
    return at, rank, id, sub, step
