"""What happened to requests, newest first: told by the rows of messages, attempts, deliveries and history.

An attempt's start stands beside its end. What succeeded at once has no attempt on record, so it is CREATED, then
DELIVERED. A past that was pruned is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, assert_never, get_args
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import HttpRequest, request_of
from todoku.core.outcome import Response
from todoku.core.redaction import redacted
from todoku.core.wanted import EVERYTHING, Wanted
from todoku.engine.http.requests import in_range, shown_answer
from todoku.engine.outbox import Outbox
from todoku.store.events import HIGHEST, CreatedRow, Kind, Past, Position, created_at, micros
from todoku.store.requests import RequestRow, TriedRow
from todoku.store.store import Store

State = Literal[
    "CREATED", "ACTIVE", "ERROR", "RETRY", "CANCEL_REQUESTED", "CANCELED", "FAILED", "DELIVERED", "IN_PROGRESS"
]  # fmt: skip
STEPS: Final[tuple[State, ...]] = get_args(State)
"""In the order in which one message goes through them, which decides between two of the same moment."""

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
"""The rows that tell of a state: nothing else is read if only that is asked for."""

_TOLD: Final = tuple(state for state in STEPS if state != "IN_PROGRESS")
"""IN_PROGRESS is another word for what runs at this moment: told only if it is asked for."""

_ROUNDS: Final = 20
_LEAST: Final = 200

Key = tuple[int, int, int, int, int]
"""Microseconds, kind, id, sub, step: no two events have the same."""

_END: Final[Key] = (253_402_214_400_000_000, len(_KINDS), HIGHEST, HIGHEST, len(STEPS))
"""Behind the year 9999."""


class HttpEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a request. `attempt` counts from 1; `next_at`: when it is sent again."""

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
    """Some events, newest first, and the cursor of the next page (None: that was all)."""

    items: tuple[HttpEvent, ...]
    cursor: str | None


def listed(
    outbox: Outbox, wanted: Wanted = EVERYTHING, *, cursor: str | None = None, limit: int = 1000
) -> RequestEventPage:
    """One page of the events that are meant. A filter that few pass gives a short page, and a cursor to go on."""
    if unknown := set(wanted.states) - set(STEPS):
        raise InvalidMessage(f"state cannot be {sorted(unknown)[0][:64]!r}", hint=", ".join(STEPS))
    before = _before(wanted) if cursor is None else _key(cursor)
    page = (_of_messages if wanted.message_ids else _of_all)(outbox.store, wanted, before, limit)
    return RequestEventPage(_with_answers(outbox.store, page.items), page.cursor)


# ------------------------------------------------------------------------------------------------ pages


def _of_all(store: Store, wanted: Wanted, before: Key, limit: int) -> RequestEventPage:
    """So many that are meant, of all there is, after looking at a bounded number."""
    kinds = {kind for state in wanted.states for kind in _OF_STATE[state]} or set(_KINDS)
    found: list[HttpEvent] = []
    for _ in range(_ROUNDS):
        events, horizon = _round(store, sorted(kinds), before, wanted, max(_LEAST, limit + 1))
        for event in (event for event in events if _is_meant(wanted, event)):
            if len(found) == limit:
                return RequestEventPage(tuple(found), _cursor(found[-1].key))
            found.append(event)
        if horizon is None:
            return RequestEventPage(tuple(found), None)
        before = horizon
    return RequestEventPage(tuple(found), _cursor(before))


def _round(
    store: Store, kinds: Sequence[Kind], before: Key, wanted: Wanted, most: int
) -> tuple[list[HttpEvent], Key | None]:
    """The next events of all kinds, newest first, as far down as every kind was read; how far, if there is more."""
    since = 0 if wanted.since is None else micros(wanted.since)
    page = store.events.page({kind: _position(kind, before) for kind in kinds}, since=since, limit=most)
    horizons = [_row_key(kind, rows[-1]) for kind, rows in page.items() if len(rows) == most]
    horizon = max(horizons, default=None)
    told = (event for kind, rows in page.items() for past in rows for event in _told(kind, past))
    events = [event for event in told if event.key < before and (horizon is None or event.key >= horizon)]
    return sorted(events, key=lambda event: event.key, reverse=True), horizon


def _position(kind: Kind, before: Key) -> Position:
    """Where a kind is read from, its row included: rows of one moment are in the order of their kinds."""
    at, rank, id, sub, _ = before
    mine = _KINDS.index(kind)
    if mine == rank:
        return at, id, sub
    return (at if mine < rank else at - 1), HIGHEST, HIGHEST


def _row_key(kind: Kind, past: Past) -> Key:
    at, id, sub = past.position
    return at, _KINDS.index(kind), id, sub, 0


def _of_messages(store: Store, wanted: Wanted, before: Key, limit: int) -> RequestEventPage:
    """All that happened to some messages: they are few, so all of it is read."""
    ids = list(dict.fromkeys(wanted.message_ids))
    rows = store.requests.of(ids)
    pasts = [_past("created", row) for row in store.events.created(ids)]
    pasts += [_past(_kind(row), row) for row in rows if row.status in _KIND_OF]
    pasts += [_past("tried", row) for row in store.requests.attempts([row.delivery_id for row in rows])]
    told = [event for kind, past in pasts for event in _told(kind, past)]
    meant = [event for event in told if event.key < before and _is_meant(wanted, event)]
    events = sorted(meant, key=lambda event: event.key, reverse=True)
    return RequestEventPage(tuple(events[:limit]), _cursor(events[limit - 1].key) if len(events) > limit else None)


_KIND_OF: Final[dict[str, Kind]] = {"sending": "sending", "aborted": "died", "succeeded": "delivered"}


def _kind(row: RequestRow) -> Kind:
    return _KIND_OF[row.status]


def _past(kind: Kind, row: CreatedRow | TriedRow | RequestRow) -> tuple[Kind, Past]:
    match row:
        case CreatedRow():
            position = (created_at(row.message_id), row.message_id.int, 0)
        case TriedRow():
            position = (micros(row.ended_at), row.delivery_id, row.epoch)
        case RequestRow():
            at = row.claimed_at if kind == "sending" and row.claimed_at is not None else row.updated_at
            position = (micros(at), row.delivery_id, 0)
        case _:
            assert_never(row)
    return kind, Past(position, row)


def _is_meant(wanted: Wanted, event: HttpEvent) -> bool:
    return (
        event.state in (wanted.states or _TOLD)
        and wanted.takes(event.request)
        and in_range(wanted, event.at)
        and (not wanted.statuses or (event.response.status if event.response else 0) in wanted.statuses)
    )


# ---------------------------------------------------------------------------------------------- telling


def _told(kind: Kind, past: Past) -> Iterator[HttpEvent]:
    """What a row tells: one event, or a few of one moment."""
    row = past.what
    request = None if row is None else request_of(row.headers)
    if row is None or request is None:
        return
    at, id, sub = past.position
    seen = redacted(request)

    def event(state: State, when: datetime, told: TriedRow | RequestRow | None = None) -> HttpEvent:
        key = (at, _KINDS.index(kind), id, sub, STEPS.index(state))
        base = HttpEvent(
            key=key, at=when, state=state, message_id=row.message_id, request=seen, created_at=row.created_at
        )  # fmt: skip
        return base if told is None else _with(base, told)

    match row:
        case CreatedRow():
            yield event("CREATED", row.created_at)
        case TriedRow():
            yield event("ACTIVE", row.started_at or row.ended_at)
            yield event("ERROR", row.ended_at, row)
            if not row.final:
                yield event("RETRY", row.ended_at, row)
            elif not row.dead:
                yield event("FAILED", row.ended_at, row)
        case RequestRow():
            yield from (event(state, when, row) for state, when in _states(row))
        case _:
            assert_never(row)


def _states(row: RequestRow) -> Iterator[tuple[State, datetime]]:
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


def _with(base: HttpEvent, told: TriedRow | RequestRow) -> HttpEvent:
    if isinstance(told, TriedRow):
        return msgspec.structs.replace(
            base, attempt=told.number, reason=told.reason, error=told.error, response=shown_answer(told.response)
        )
    return msgspec.structs.replace(base, attempt=told.attempts, reason=told.reason, error=told.error)


def _with_answers(store: Store, events: Sequence[HttpEvent]) -> tuple[HttpEvent, ...]:
    """What made a request a dead letter is told with what was answered last."""
    died = _KINDS.index("died")
    last = store.requests.last_attempts([event.key[2] for event in events if event.key[1] == died])
    return tuple(
        msgspec.structs.replace(event, response=shown_answer(last[event.key[2]].response))
        if event.key[1] == died and event.state == "FAILED" and event.key[2] in last
        else event
        for event in events
    )


# ---------------------------------------------------------------------------------------------- cursors


def _before(wanted: Wanted) -> Key:
    if wanted.until is None:
        return _END
    return (micros(wanted.until + timedelta(milliseconds=1)), *_END[1:])


def _cursor(key: Key) -> str:
    return ".".join(map(str, key))


def _key(cursor: str) -> Key:
    parts = cursor.split(".")
    if len(parts) != len(_END) or not all(part.isdecimal() and len(part) < 40 for part in parts):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass back the cursor of the page before")
    at, rank, id, sub, step = map(int, parts)
    if at > _END[0] or rank > len(_KINDS) or sub > HIGHEST or (id > HIGHEST and rank != 0) or id >= 1 << 128:
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass back the cursor of the page before")
    return at, rank, id, sub, step
