"""Failed events: a table of the application, filled with dead letters, as statements for any connection.

It is not one of todoku's tables: the application may create it, query it, and join it with its own tables.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.store.publish import Publishing
from todoku.store.sql import Statement, Steps, Value

TABLE: Final = "failed_webhook_events"
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class FailedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an event that became a dead letter, and who sent it again. Times are ISO 8601 in UTC."""

    event_id: str
    payload: str
    error: str
    created_at: str = ""
    """When it failed; "": unknown, and stored as the time at which the row is written."""
    message_id: str
    dlq_id: str
    request: str
    """JSON: the request, so that it can be published again."""
    rerun_at: str | None = None
    rerun_by: str | None = None
    rerun_why: str | None = None


def checked_table(name: str) -> str:
    """Returns the name if it needs no quotes in SQL; InvalidSetting otherwise."""
    if not _NAME.fullmatch(name):
        raise InvalidSetting(f"table cannot be {name!r}", hint="use letters, digits and _, as in failed_webhook_events")
    return name


def has_table(to: Publishing, table: str) -> Steps[bool]:
    """Whether the table exists."""
    return bool((yield _in_table(table, to.one("failed_events_there", bare=table))))


def create_table(to: Publishing, table: str) -> Steps[None]:
    """Creates the table, unless it exists."""
    if (yield from has_table(to, table)):
        return
    yield _in_table(table, to.one("failed_events_lock"))
    yield _in_table(table, to.one("failed_events_create"))


def read_clock(to: Publishing, table: str) -> Steps[str]:
    """Returns the database's clock, to be passed to `add_event` as `looked_at`."""
    ((now,),) = yield _in_table(table, to.one("failed_events_now"))
    return str(now)


def add_event(to: Publishing, table: str, event: FailedEvent, *, looked_at: str) -> Steps[bool]:
    """Stores an event that was a dead letter at `looked_at`. False: it was already stored."""
    values: dict[str, Value] = {
        "event_id": event.event_id, "payload": event.payload, "error": event.error, "message_id": event.message_id,
        "dlq_id": event.dlq_id, "request": event.request, "looked_at": looked_at,
        "failed_at": event.created_at or None,
    }  # fmt: skip
    return bool((yield _in_table(table, to.one("failed_event_add", **values))))


def find_event(to: Publishing, table: str, event_id: str) -> Steps[FailedEvent | None]:
    """Returns the row of an event; None: there is none."""
    rows = yield _in_table(table, to.one("failed_event", event_id=event_id))
    return FailedEvent(**dict(zip(FailedEvent.__struct_fields__, cast("Any", rows[0]), strict=True))) if rows else None


def record_rerun(to: Publishing, table: str, event: FailedEvent, *, by: str, why: str) -> Steps[bool]:
    """Records who sent an event again. False: it became a dead letter again meanwhile."""
    values: dict[str, Value] = {"event_id": event.event_id, "dlq_id": event.dlq_id, "rerun_by": by, "rerun_why": why}
    return bool((yield _in_table(table, to.one("failed_event_rerun", **values))))


def open_events(to: Publishing, table: str) -> Steps[list[tuple[str, str]]]:
    """Returns (event id, id of the dead letter) of each row whose event was not sent again."""
    rows = yield _in_table(table, to.one("failed_events_open"))
    return [(str(event_id), str(dlq_id)) for event_id, dlq_id in rows]


def close_event(to: Publishing, table: str, event_id: str, *, dlq_id: str | None, by: str, why: str) -> Steps[bool]:
    """Closes the open row of an event, if its dead letter is `dlq_id` or that is None. False: there is none."""
    values: dict[str, Value] = {"event_id": event_id, "dlq_id": dlq_id, "rerun_by": by, "rerun_why": why}
    return bool((yield _in_table(table, to.one("failed_event_close", **values))))


def close_replayed(to: Publishing, table: str) -> Steps[int]:
    """Closes the rows whose dead letters were replayed in this database, as its audit says. Returns how many."""
    if not (yield from has_table(to, table)):
        return 0
    return len((yield _in_table(table, to.one("failed_events_close_replayed"))))


def _in_table(table: str, statement: Statement) -> Statement:
    return statement if table == TABLE else Statement(statement.sql.replace(TABLE, table), statement.values)
