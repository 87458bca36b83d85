"""Dead letters of requests: found, shown with what the receiver answered last, sent again, removed.

What was cancelled is no dead letter here: somebody wanted it so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import dead_id, dead_ref, request_of
from todoku.core.outcome import Response
from todoku.core.wanted import EVERYTHING, Wanted
from todoku.engine.http.requests import CANCELLED, RequestView, in_range, shown, shown_answer
from todoku.engine.http.retry_locked import insisted
from todoku.engine.outbox import Outbox
from todoku.store.acts import Acted
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.deliveries import Filter
from todoku.store.requests import LAST, RequestRow, TriedRow
from todoku.store.store import Store

T = TypeVar("T")

CHUNK: Final = 500
LOOKED_AT: Final = 20_000
"""Dead letters that one page looks at: a filter that few of them pass gives a short page, and a cursor to go on."""


class RequestDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and what the receiver answered to its last attempt (None: nothing)."""

    id: str
    request: RequestView
    response: Response | None


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Some dead letters, those that died last first, and the cursor of the next page (None: that was all)."""

    items: tuple[RequestDeadLetter, ...]
    cursor: str | None


class Acts(msgspec.Struct, frozen=True):
    """What an act came to: the messages it changed, in the order looked at, and the cursor to go on with, if any."""

    message_ids: tuple[UUID, ...]
    cursor: str | None


def listed(
    outbox: Outbox, wanted: Wanted = EVERYTHING, *, cursor: str | None = None, limit: int = 100
) -> DeadLetterPage:
    """One page of the dead letters that are meant. `since` and `until` are of the moment they died."""
    rows, following = _found(outbox.store, wanted, cursor, limit)
    return DeadLetterPage(_letters(outbox, rows), following)


def get(outbox: Outbox, id: str) -> RequestDeadLetter | None:
    """One dead letter; None: there is none, it was sent again, or removed."""
    return next(iter(_letters(outbox, _by_ids(outbox.store, [id]))), None)


def was_sent_again(outbox: Outbox, id: str) -> bool:
    """Whether this was the id of a dead letter that somebody has sent again since."""
    if (ref := dead_ref(id)) is None:
        return False
    delivery_id, replay_count = ref
    tried = outbox.store.requests.last_attempts([delivery_id]).get(delivery_id)
    rows = () if tried is None else outbox.store.requests.of([tried.message_id])
    return any(row.delivery_id == delivery_id and row.replay_count > replay_count for row in rows)


def retry(
    outbox: Outbox,
    wanted: Wanted,
    signed: Signed,
    *,
    cursor: str | None = None,
    limit: int = 100,
    dry_run: bool = False,
) -> Acts:
    """Send dead letters again, from attempt 0 and audited (I9); those that are meant, one page of them."""

    def act(ids: tuple[int, ...]) -> Acted:
        return outbox.store.acts.replay(Filter(ids=ids), signed, limit=len(ids), dry_run=dry_run)

    done = _acted(outbox.store, wanted, cursor, limit, act)
    if not dry_run:
        outbox.wake()
    return done


def remove(
    outbox: Outbox,
    wanted: Wanted,
    signed: Signed,
    *,
    cursor: str | None = None,
    limit: int = 100,
    dry_run: bool = False,
) -> Acts:
    """Remove dead letters for good, audited; those that are meant, one page of them."""

    def act(ids: tuple[int, ...]) -> Acted:
        return outbox.store.acts.purge(Filter(ids=ids), signed, limit=len(ids), dry_run=dry_run)

    return _acted(outbox.store, wanted, cursor, limit, act)


# ------------------------------------------------------------------------------------------------ inside


def _acted(
    store: Store, wanted: Wanted, cursor: str | None, limit: int, act: Callable[[tuple[int, ...]], Acted]
) -> Acts:
    rows, following = _found(store, wanted, cursor, limit)
    changed: set[int] = set()
    for start in range(0, len(rows), CHUNK):
        changed.update(insisted(store, rows[start : start + CHUNK], act, _is_dead))
    return Acts(tuple(row.message_id for row in rows if row.delivery_id in changed), following)


def _found(store: Store, wanted: Wanted, cursor: str | None, limit: int) -> tuple[list[RequestRow], str | None]:
    """Up to `limit` that are meant, and where to go on."""
    if wanted.dead_ids or wanted.message_ids:
        if wanted.dead_ids:
            rows: Sequence[RequestRow] = _by_ids(store, wanted.dead_ids)
        else:
            rows = [row for row in store.requests.of(wanted.message_ids) if _is_dead(row)]
        return _is_meant(store, wanted, [row for row in rows if in_range(wanted, row.updated_at)])[:limit], None
    return _scanned(store, wanted, LAST if cursor is None else _position(cursor), limit)


def _scanned(
    store: Store, wanted: Wanted, before: tuple[datetime, int], limit: int
) -> tuple[list[RequestRow], str | None]:
    found: list[RequestRow] = []
    looked_at = 0
    while looked_at < LOOKED_AT:
        rows = store.requests.dead(before, since=wanted.since, until=wanted.until, limit=CHUNK)
        for row in _is_meant(store, wanted, rows):
            if len(found) == limit:
                return found, _cursor(found[-1])
            found.append(row)
        if len(rows) < CHUNK:
            return found, None
        before = rows[-1].position
        looked_at += len(rows)
    return found, f"{round(before[0].timestamp() * 1e6)}.{before[1]}"


def _is_meant(store: Store, wanted: Wanted, rows: Sequence[RequestRow]) -> list[RequestRow]:
    """Those of some rows that are meant, in their order; what was answered is looked up only if it is asked for."""
    taken = [
        row
        for row in rows
        if (request := request_of(row.headers)) is not None
        and wanted.takes(request)
        and (not wanted.reasons or row.reason in wanted.reasons)
    ]
    if not wanted.statuses or not taken:
        return taken
    last = store.requests.last_attempts([row.delivery_id for row in taken])
    return [row for row in taken if _status(last.get(row.delivery_id)) in wanted.statuses]


def _status(tried: TriedRow | None) -> int:
    return 0 if tried is None or tried.response is None else tried.response.status


def _by_ids(store: Store, ids: Sequence[str]) -> tuple[RequestRow, ...]:
    refs = {ref for id in ids if (ref := dead_ref(id)) is not None}
    if not refs:
        return ()
    rows = store.requests.dead_by_ids([delivery_id for delivery_id, _ in refs])
    return tuple(row for row in rows if (row.delivery_id, row.replay_count) in refs and _is_dead(row))


def _is_dead(row: RequestRow) -> bool:
    return row.status == "aborted" and row.reason != CANCELLED


def _letters(outbox: Outbox, rows: Sequence[RequestRow]) -> tuple[RequestDeadLetter, ...]:
    last = outbox.store.requests.last_attempts([row.delivery_id for row in rows])
    return tuple(
        RequestDeadLetter(
            id=dead_id(each.delivery_id, each.replay_count),
            request=each,
            response=shown_answer(last[each.delivery_id].response) if each.delivery_id in last else None,
        )
        for each in shown(outbox, rows)
    )


def _cursor(row: RequestRow) -> str:
    at, id = row.position
    return f"{round(at.timestamp() * 1e6)}.{id}"


def _position(cursor: str) -> tuple[datetime, int]:
    at, dot, id = cursor.partition(".")
    if not (dot and at.isdecimal() and id.isdecimal() and len(at) < 18 and len(id) < 19):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass back the cursor of the page before")
    return moment(int(at) / 1e6), int(id)
