"""Requests to ingest, and their log lines and metrics, which never contain a body.

They are reported in batches: requests that shared a commit are answered in one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from todoku.core.message import Message
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import LEVELS, IngestedLine, Level, log_lines, lowest_level
from todoku.engine.observability.telemetry import Telemetry

UNKNOWN: Final = "unknown"
"""The metric label for sources that do not exist: names invented by callers must not become labels."""

_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class Visit:
    """One request to ingest, with what is known of it so far."""

    __slots__ = (
        "began", "duplicate", "error", "event_id", "message_id", "request_id", "seconds", "source", "status", "topic",
        "trace_id",
    )  # fmt: skip

    def __init__(self, source: str, request_id: str) -> None:
        self.began = time.perf_counter()
        self.request_id = request_id
        self.source = source
        self.trace_id: str | None = None
        self.event_id: str | None = None
        self.topic: str | None = None
        self.message_id: str | None = None
        self.duplicate = False
        self.status = 0
        self.seconds = 0.0
        self.error: str | None = None

    def stored(self, message: Message) -> None:
        """Records the message of the event, which may have been stored by an earlier request."""
        self.message_id, self.duplicate = str(message.id), message.duplicate


class Visits:
    """Reports ended requests, from a later turn of the event loop. Used within event loops only."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._ended: list[Visit] = []

    def end(self, visit: Visit, status: int, error: Exception | None = None) -> None:
        """Records that the request was answered with this status, and because of which error, if any."""
        visit.status = status
        visit.seconds = time.perf_counter() - visit.began
        if error is not None:
            visit.error = type(error).__name__
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._report)
        self._ended.append(visit)

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        metrics = self._telemetry.metrics
        for label, number in Counter(f"{visit.source},{visit.status}" for visit in ended).items():
            metrics.add(counting.INGESTED, number, label)
        metrics.observe(counting.INGEST_SECONDS, [visit.seconds for visit in ended])
        if (least := lowest_level()) is not None:
            at = datetime.now(UTC)
            log_lines([_line(visit, at) for visit in ended if LEVELS[_level(visit.status)] >= least])


def _line(visit: Visit, at: datetime) -> IngestedLine:
    return IngestedLine(
        "ingested",
        at,
        _level(visit.status),
        visit.request_id,
        visit.trace_id,
        visit.message_id,
        visit.topic,
        visit.status,
        visit.error,
        round(visit.seconds * 1000, 3),
        visit.event_id,
        visit.source,
        visit.duplicate,
    )


def _level(status: int) -> Level:
    if status < _CLIENT_ERROR:
        return "info"
    return "warning" if status < _SERVER_ERROR else "error"
