"""How many requests each ingest source sent to this process, and how they were answered."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class SourceCount(msgspec.Struct):
    """Requests of one source since this process started. `refused`: answered with 4xx; `failed`: with 5xx."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    failed: int = 0
    last_at: datetime | None = None
    last_message_id: str | None = None
    """The message of the last event that was stored, or found stored."""


class SourceCounts:
    """The counts of this process by source. One event loop writes; any thread may read."""

    def __init__(self) -> None:
        self._counts: dict[str, SourceCount] = {}

    def add(self, source: str, status: int, at: datetime, *, duplicate: bool, message_id: str | None) -> None:
        """Counts one request that was answered."""
        count = self._counts.setdefault(source, SourceCount())
        if status >= _SERVER_ERROR:
            count.failed += 1
        elif status >= _CLIENT_ERROR:
            count.refused += 1
        elif duplicate:
            count.duplicate += 1
        else:
            count.accepted += 1
        if message_id is not None and status < _CLIENT_ERROR:
            count.last_at, count.last_message_id = at, message_id

    def of(self, source: str) -> SourceCount:
        """Returns a copy of the counts of a source."""
        found = self._counts.get(source)
        return SourceCount() if found is None else msgspec.structs.replace(found)
