"""The lines that a settled attempt and a request to ingest write into the log, as values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

Level = Literal["debug", "info", "warning", "error"]
Fields = dict[str, Any]


class SettledLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The line of a settled attempt: exactly these fields, in this order; null means unknown."""

    event: Literal["settled"]
    ts: datetime
    level: Level
    correlation_id: str | None
    trace_id: str | None
    message_id: str
    outbox_id: int
    topic: str
    adapter: str
    status: Literal["pending", "succeeded", "failed", "aborted"]
    attempts: int
    reason_code: str | None
    error_type: str | None
    idempotency_key_hash: str | None
    latency_ms: float
    worker: UUID


class IngestedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The line of a request to ingest. `status` is the HTTP status of the answer; `message_id` the stored message."""

    event: Literal["ingested"]
    ts: datetime
    level: Level
    correlation_id: str
    trace_id: str | None
    message_id: str | None
    topic: str | None
    status: int
    error_type: str | None
    latency_ms: float
    event_id: str | None
    source: str
    duplicate: bool


class BoundLine(msgspec.Struct, frozen=True, gc=False):
    """The line of a settled attempt whose handler bound fields with `ctx.log.bind`: they follow the line's own.

    A bound field with the name of one of these is left out.
    """

    line: SettledLine
    bound: Fields


Line = SettledLine | BoundLine | IngestedLine
