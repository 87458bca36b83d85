"""The rows of the outbox, typed: the seed's OutboxStatus and OutboxRecord<TPayload>."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

P = TypeVar("P")


class OutboxStatus(StrEnum):
    """How far an event is."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    PUBLISHED = "PUBLISHED"
    FAILED = "FAILED"


class OutboxRecord(msgspec.Struct, Generic[P], frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event on its way. Times are aware, in UTC; as JSON they are ISO text, and the names are the seed's."""

    id: UUID
    event_type: str
    aggregate_id: str
    payload: P
    status: OutboxStatus
    attempts: int
    next_attempt_at: datetime
    created_at: datetime
    published_at: datetime | None = None


def read_records(rows: Iterable[Mapping[str, Any]], payload: type[P]) -> list[OutboxRecord[P]]:
    """Rows of the view `outbox`, whose payloads are all of one type; msgspec.ValidationError if one is not."""
    return [_record(row, payload) for row in rows]


def _record(row: Mapping[str, Any], payload: type[P]) -> OutboxRecord[P]:
    body = row["payload"]
    return OutboxRecord(
        id=UUID(str(row["id"])),
        event_type=row["event_type"],
        aggregate_id=str(row["aggregate_id"]),
        payload=msgspec.convert(json.loads(body) if isinstance(body, str) else body, payload),
        status=OutboxStatus(row["status"]),
        attempts=row["attempts"],
        next_attempt_at=_moment(row["next_attempt_at"]),
        created_at=_moment(row["created_at"]),
        published_at=None if row["published_at"] is None else _moment(row["published_at"]),
    )


def _moment(value: str | datetime) -> datetime:
    """SQLite has no times: the view gives them as text, in UTC."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value.astimezone(UTC)
