"""Failed events: a table of the application's own, filled with what died, as statements for whatever connection.

It is no table of todoku's: people look at it, join it with their own, and make it themselves if they like.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.store.publish import Publishing
from todoku.store.statements import Statement, Steps, Value

TABLE: Final = "failed_webhook_events"
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class FailedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an event that died, and whether somebody has sent it again. Times are ISO 8601 in UTC."""

    event_id: str
    payload: str
    error: str
    created_at: str = ""
    message_id: str
    dlq_id: str
    request: str
    """JSON: where it went and how, to publish it anew."""
    rerun_at: str | None = None
    rerun_by: str | None = None
    rerun_why: str | None = None


def checked_table(name: str) -> str:
    """A name that can stand in SQL as it is, or InvalidSetting."""
    if not _NAME.fullmatch(name):
        raise InvalidSetting(f"table cannot be {name!r}", hint="letters, digits and _: failed_webhook_events")
    return name


def create_table(to: Publishing, table: str) -> Steps[None]:
    """Make the table, unless it is there."""
    if (yield _in_table(table, to.one("failed_events_there", bare=table))):
        return
    yield _in_table(table, to.one("failed_events_lock"))
    yield _in_table(table, to.one("failed_events_create"))


def read_clock(to: Publishing, table: str) -> Steps[str]:
    """The moment at which a look begins."""
    ((now,),) = yield _in_table(table, to.one("failed_events_now"))
    return str(now)


def add_event(to: Publishing, table: str, event: FailedEvent, *, looked_at: str) -> Steps[bool]:
    """Keep an event that is dead at this look. False: it was known."""
    values: dict[str, Value] = {
        "event_id": event.event_id, "payload": event.payload, "error": event.error, "message_id": event.message_id,
        "dlq_id": event.dlq_id, "request": event.request, "looked_at": looked_at,
    }  # fmt: skip
    return bool((yield _in_table(table, to.one("failed_event_add", **values))))


def find_event(to: Publishing, table: str, event_id: str) -> Steps[FailedEvent | None]:
    """The row of an event."""
    rows = yield _in_table(table, to.one("failed_event", event_id=event_id))
    return FailedEvent(**dict(zip(FailedEvent.__struct_fields__, cast("Any", rows[0]), strict=True))) if rows else None


def record_rerun(to: Publishing, table: str, event: FailedEvent, *, by: str, why: str) -> Steps[bool]:
    """Somebody has sent it again. False: it has died anew since."""
    values: dict[str, Value] = {"event_id": event.event_id, "dlq_id": event.dlq_id, "rerun_by": by, "rerun_why": why}
    return bool((yield _in_table(table, to.one("failed_event_rerun", **values))))


def _in_table(table: str, statement: Statement) -> Statement:
    return statement if table == TABLE else Statement(statement.sql.replace(TABLE, table), statement.values)
