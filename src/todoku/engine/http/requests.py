"""Requests as people look at them, one by one; and cancelling, one by one or by what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage, NoSuchMessage
from todoku.core.http_request import HttpRequest, request_of
from todoku.core.outcome import Response
from todoku.core.redaction import redacted, redacted_answer, redacted_body
from todoku.core.wanted import Wanted
from todoku.engine.http.retry_locked import insisted
from todoku.engine.operate import BATCH
from todoku.engine.outbox import Outbox
from todoku.store.acts import Acted
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.requests import RequestRow
from todoku.store.store import Store

ALIVE: Final = frozenset({"pending", "failed", "sending"})
CANCELLED: Final = "CANCELLED"
"""The reason of what somebody let not happen."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request and where it is. What its publisher wanted to be hidden is hidden in `request` and `body`.

    `body` None: it is encrypted, and cannot be opened here. `not_before`: when it is, or was, to be sent next.
    """

    message_id: UUID
    delivery_id: int
    request: HttpRequest
    body: bytes | None
    status: str
    attempts: int
    created_at: datetime
    not_before: datetime
    updated_at: datetime
    reason: str | None
    error: str | None
    replay_count: int
    cancel_requested: bool

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody let it not happen. What runs and was asked to stop is not over yet."""
        return self.status == "aborted" and self.reason == CANCELLED


class Cancelled(msgspec.Struct, frozen=True):
    """How many were cancelled, and the cursor to go on with (None: nothing that is meant is left)."""

    number: int
    cursor: str | None


def get(outbox: Outbox, message_id: UUID) -> RequestView | None:
    """A request, waiting, dead, cancelled or delivered; None: there is none, or its retention has passed."""
    return next(iter(shown(outbox, outbox.store.requests.of([message_id]))), None)


def shown(outbox: Outbox, rows: Sequence[RequestRow]) -> tuple[RequestView, ...]:
    """Rows with their bodies, as people may see them, in their order."""
    bodies = _bodies(outbox, [row.message_id for row in rows])
    return tuple(
        _shown(row, request, bodies.get(row.message_id))
        for row in rows
        if (request := request_of(row.headers)) is not None
    )


def cancel(outbox: Outbox, message_id: UUID, signed: Signed) -> int:
    """Let a request not happen: what waits is over, what runs is asked to stop. Returns 0 if it had ended already.

    NoSuchMessage: there is none.
    """
    rows = outbox.store.requests.of([message_id])
    if not rows:
        raise NoSuchMessage(f"message {message_id} not found", hint="it was never published, or is long over")
    return _cancelled(outbox.store, rows, signed)


def cancel_many(
    outbox: Outbox, wanted: Wanted, signed: Signed, *, cursor: str | None = None, limit: int | None = None
) -> Cancelled:
    """Cancel every request that is meant and has not ended, the oldest first; at most `limit`, from `cursor` on.

    An empty filter means all of them: whoever asks must be sure that it was meant so.
    """
    number = 0
    for rows in _chunks(outbox.store, wanted, 0 if cursor is None else _position(cursor)):
        some = rows if limit is None else rows[: limit - number]
        number += _cancelled(outbox.store, some, signed)
        if number == limit:
            return Cancelled(number, _following(outbox.store, wanted, some[-1].delivery_id))
    return Cancelled(number, None)


def in_range(wanted: Wanted, at: datetime) -> bool:
    """Whether a moment is one that is meant."""
    return (wanted.since is None or at >= wanted.since) and (wanted.until is None or at <= wanted.until)


def _chunks(store: Store, wanted: Wanted, after: int) -> Iterator[list[RequestRow]]:
    """Those that are meant and have not ended, so many at a time, of the deliveries behind `after`."""
    if wanted.message_ids:
        rows = store.requests.of(wanted.message_ids)
        meant = [row for row in rows if row.delivery_id > after and _is_alive(row) and _is_meant(wanted, row)]
        yield sorted(meant, key=lambda row: row.delivery_id)
        return
    while rows := store.requests.waiting(after=after, limit=BATCH):
        if some := [row for row in rows if _is_meant(wanted, row)]:
            yield some
        after = rows[-1].delivery_id


def _following(store: Store, wanted: Wanted, last: int) -> str | None:
    """The cursor to go on with behind a delivery; None: nothing that is meant is left."""
    return str(last) if any(_chunks(store, wanted, last)) else None


def _position(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass back the cursor of the page before")
    return int(cursor)


def _is_alive(row: RequestRow) -> bool:
    return row.status in ALIVE


def _is_meant(wanted: Wanted, row: RequestRow) -> bool:
    request = request_of(row.headers)
    return request is not None and wanted.takes(request) and in_range(wanted, row.created_at)


def _cancelled(store: Store, rows: Sequence[RequestRow], signed: Signed) -> int:
    def act(ids: tuple[int, ...]) -> Acted:
        return store.acts.cancel(Filter(ids=ids), signed, limit=len(ids))

    return len(insisted(store, rows, act, _is_alive))


def _shown(row: RequestRow, request: HttpRequest, body: bytes | None) -> RequestView:
    return RequestView(
        message_id=row.message_id,
        delivery_id=row.delivery_id,
        request=redacted(request),
        body=None if body is None else redacted_body(request, body),
        status=row.status,
        attempts=row.attempts,
        created_at=row.created_at,
        not_before=row.next_run_at,
        updated_at=row.updated_at,
        reason=row.reason,
        error=row.error,
        replay_count=row.replay_count,
        cancel_requested=row.cancel_requested,
    )


def _bodies(outbox: Outbox, ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """What is inside; what cannot be opened is left out."""
    found: dict[UUID, bytes] = {}
    for id, row in outbox.store.requests.bodies(ids).items():
        try:
            found[id] = outbox.opener.body(str(id), row.topic, row.content_type, row.raw)
        except CannotOpen:
            continue
    return found


def shown_answer(answer: Response | None) -> Response | None:
    """What a receiver answered, as people may see it: without the cookies that it set."""
    return None if answer is None else msgspec.structs.replace(answer, headers=redacted_answer(answer.headers))
