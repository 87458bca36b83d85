"""Dead letters of HTTP requests: find, replay and purge them by id or filter.

A cancelled request is not a dead letter here: its publisher or an operator ended it deliberately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.http_request import dead_id, parse_dead_id
from todoku.core.outcome import Response
from todoku.engine.http import request_acts
from todoku.engine.http.requests import CANCELLED, RequestView, view, visible_response
from todoku.engine.outbox import Outbox
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter, Page
from todoku.store.store import Store


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters by their ids over HTTP, or by a filter."""

    dead_ids: tuple[str, ...] = ()
    which: Filter = Filter()


EVERYTHING: Final = Selection()


class RequestDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and the response to its last attempt (None: there was none)."""

    id: str
    request: RequestView
    response: Response | None


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters, the last to die first, and the cursor of the next page (None: this is the last)."""

    items: tuple[RequestDeadLetter, ...]
    cursor: str | None


class ChangedMessages(msgspec.Struct, frozen=True):
    """The messages that were changed, in the order of reading, and the cursor of the next page (None: the last)."""

    message_ids: tuple[UUID, ...]
    cursor: str | None


def find(
    outbox: Outbox, selection: Selection = EVERYTHING, *, cursor: str | None = None, limit: int = 100
) -> DeadLetterPage:
    """Returns one page of dead letters. `since` and `until` of the filter refer to when they died."""
    page = _find(outbox.store, selection, cursor, limit)
    return DeadLetterPage(_letters(outbox, page.items), page.next)


def get(outbox: Outbox, id: str) -> RequestDeadLetter | None:
    """Returns one dead letter; None if it does not exist, was replayed or purged."""
    return next(iter(_letters(outbox, _by_ids(outbox.store, [id]))), None)


def was_replayed(outbox: Outbox, id: str) -> bool:
    """Returns whether this is the id of a dead letter that was replayed."""
    if (ref := parse_dead_id(id)) is None:
        return False
    delivery_id, replay_count = ref
    last = outbox.store.attempts.last([delivery_id]).get(delivery_id)
    rows = () if last is None or last.message_id is None else outbox.store.deliveries.of_requests([last.message_id])
    return any(row.id == delivery_id and row.replay_count > replay_count for row in rows)


def replay(
    outbox: Outbox, selection: Selection, signed: Signed, *, cursor: str | None = None, limit: int = 100
) -> ChangedMessages:
    """Replays one page of dead letters, from attempt 0 and audited (I9)."""
    page = _find(outbox.store, selection, cursor, limit)
    changed = _changed_messages(page, request_acts.replay_each(outbox.store, page.items, signed))
    outbox.wake()
    return changed


def purge(
    outbox: Outbox, selection: Selection, signed: Signed, *, cursor: str | None = None, limit: int = 100
) -> ChangedMessages:
    """Removes one page of dead letters permanently, audited."""
    page = _find(outbox.store, selection, cursor, limit)
    return _changed_messages(page, request_acts.purge_each(outbox.store, page.items, signed))


def _changed_messages(page: Page, changed: frozenset[int]) -> ChangedMessages:
    ids = (row.message_id for row in page.items if row.id in changed)
    return ChangedMessages(tuple(id for id in ids if id is not None), page.next)


def _find(store: Store, selection: Selection, cursor: str | None, limit: int) -> Page:
    """Returns up to `limit` matching deliveries and the next cursor."""
    which = selection.which
    if selection.dead_ids:
        found = {row.id: row for row in _by_ids(store, selection.dead_ids)}
        which = msgspec.structs.replace(which, ids=tuple(found))
        if not found:
            return Page((), None)
    elif which.message_ids:
        rows = store.deliveries.of_requests(which.message_ids)
        found = {row.id: row for row in rows if _is_dead(row)}
        which = msgspec.structs.replace(which, ids=tuple(found))
    else:
        return store.deliveries.find_dead_requests(which, cursor=cursor, limit=limit)
    if not found:
        return Page((), None)
    matching = {row.id for row in store.deliveries.find(which, limit=len(found)).items}
    return Page(tuple(row for id, row in found.items() if id in matching)[:limit], None)


def _by_ids(store: Store, ids: Sequence[str]) -> tuple[Delivery, ...]:
    refs = {ref for id in ids if (ref := parse_dead_id(id)) is not None}
    rows = store.deliveries.dead_requests([delivery_id for delivery_id, _ in refs])
    return tuple(row for row in rows if (row.id, row.replay_count) in refs and _is_dead(row))


def _is_dead(row: Delivery) -> bool:
    return row.status == "aborted" and row.reason != CANCELLED


def _letters(outbox: Outbox, rows: Sequence[Delivery]) -> tuple[RequestDeadLetter, ...]:
    last = outbox.store.attempts.last([row.id for row in rows])
    return tuple(
        RequestDeadLetter(
            id=dead_id(each.delivery.id, each.delivery.replay_count),
            request=each,
            response=visible_response(last[each.delivery.id].response) if each.delivery.id in last else None,
        )
        for each in view(outbox, rows)
    )
