"""HTTP requests: views of them without the parts that the publisher redacted, and cancelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage, NoSuchMessage
from todoku.core.http_request import HttpRequest, request_of
from todoku.core.outcome import Response
from todoku.core.redaction import redact_body, redact_request, redact_response_headers
from todoku.engine.http import request_acts
from todoku.engine.operations import BATCH
from todoku.engine.outbox import Outbox
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter
from todoku.store.messages import StoredRequest
from todoku.store.store import Store

CANCELLED: Final = "CANCELLED"
"""The reason of a delivery that an operator or a publisher cancelled."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery of an HTTP request. Parts that its publisher redacted are hidden in `request` and `body`.

    `body` None: it is encrypted and cannot be opened here.
    """

    delivery: Delivery
    message_id: UUID
    created_at: datetime
    request: HttpRequest
    body: bytes | None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled. False for a running one that was requested to stop but has not ended yet."""
        return self.delivery.status == "aborted" and self.delivery.reason == CANCELLED


def get(outbox: Outbox, message_id: UUID) -> RequestView | None:
    """Returns a request in any status; None if it does not exist or its retention has passed."""
    return next(iter(view(outbox, outbox.store.deliveries.of_requests([message_id]))), None)


class Cancelled(msgspec.Struct, frozen=True):
    """The number of cancelled requests and the cursor to continue with (None: no matching request is left)."""

    number: int
    cursor: str | None


def cancel(outbox: Outbox, message_id: UUID, signed: Signed) -> int:
    """Cancels a request: a waiting one ends, a running one is requested to stop. Returns 0 if it had ended before.

    NoSuchMessage: it does not exist.
    """
    rows = outbox.store.deliveries.of_requests([message_id])
    if not rows:
        raise NoSuchMessage(
            f"message {message_id} not found", hint="it was never published, or its retention has passed"
        )
    return len(request_acts.cancel_each(outbox.store, rows, signed))


def cancel_many(
    outbox: Outbox, which: Filter, signed: Signed, *, cursor: str | None = None, limit: int | None = None
) -> Cancelled:
    """Cancels every request that matches and has not ended, the oldest first; at most `limit`, from `cursor` on.

    An empty filter matches all of them: the caller must ensure that this is intended.
    """
    number = 0
    for rows in _waiting(outbox.store, which, 0 if cursor is None else _position(cursor)):
        batch = rows if limit is None else rows[: limit - number]
        number += len(request_acts.cancel_each(outbox.store, batch, signed))
        if number == limit:
            return Cancelled(number, _next_cursor(outbox.store, which, batch[-1].id))
    return Cancelled(number, None)


def _waiting(store: Store, which: Filter, after: int) -> Iterator[Sequence[Delivery]]:
    """Yields batches of matching requests that have not ended, with ids greater than `after`."""
    if which.message_ids:
        ids = tuple(row.id for row in store.deliveries.of_requests(which.message_ids) if row.id > after)
        found = (
            store.deliveries.find(msgspec.structs.replace(which, ids=ids), limit=max(1, len(ids))).items if ids else ()
        )
        yield sorted((row for row in found if row.status != "aborted"), key=lambda row: row.id)
        return
    following: int | None = after
    while following is not None:
        rows, following = store.deliveries.find_waiting_requests(which, after=following, limit=BATCH)
        if rows:
            yield rows


def _next_cursor(store: Store, which: Filter, last: int) -> str | None:
    return str(last) if any(_waiting(store, which, last)) else None


def _position(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass the cursor of the previous page")
    return int(cursor)


def view(outbox: Outbox, deliveries: Sequence[Delivery]) -> tuple[RequestView, ...]:
    """Returns deliveries with their requests, in the same order, without those of other messages."""
    stored = outbox.store.messages.requests([row.message_id for row in deliveries if row.message_id is not None])
    views = (_view(outbox, row, stored.get(row.message_id)) for row in deliveries if row.message_id is not None)
    return tuple(found for found in views if found is not None)


def _view(outbox: Outbox, delivery: Delivery, stored: StoredRequest | None) -> RequestView | None:
    if stored is None or (request := request_of(stored.headers)) is None:
        return None
    body = _body(outbox, stored)
    return RequestView(
        delivery=delivery,
        message_id=stored.message_id,
        created_at=stored.created_at,
        request=redact_request(request),
        body=None if body is None else redact_body(request, body),
    )


def _body(outbox: Outbox, stored: StoredRequest) -> bytes | None:
    try:
        return outbox.opener.body(str(stored.message_id), stored.topic, stored.content_type, stored.raw)
    except CannotOpen:
        return None


def visible_response(response: Response | None) -> Response | None:
    """Returns a receiver's response without the cookies that it set."""
    return (
        None
        if response is None
        else msgspec.structs.replace(response, headers=redact_response_headers(response.headers))
    )
