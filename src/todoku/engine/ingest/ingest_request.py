"""Requests to ingest, from arrival to answer, and what is told of them: a line and numbers, never a body.

Told by the batch, as what is settled is: requests whose commit they shared are answered in one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from todoku.core.message import Message
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import LEVELS, IngestedLine, Level, least_level, log_lines
from todoku.engine.observability.telemetry import Telemetry

UNKNOWN: Final = "unknown"
"""How a source is called that there is none of: what somebody made up is no label."""

_REFUSED: Final = 400
_FAILED: Final = 500


class Visit:
    """What is known of a request so far."""

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
        """Its event is this message, now or since earlier."""
        self.message_id, self.duplicate = str(message.id), message.duplicate


class Visits:
    """Tells of the visits that have ended. Used from event loops; it writes where the loop has a moment."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._ended: list[Visit] = []

    def end(self, visit: Visit, status: int, error: Exception | None = None) -> None:
        """It was answered with this status, because of this error if there was one."""
        visit.status = status
        visit.seconds = time.perf_counter() - visit.began
        if error is not None:
            visit.error = type(error).__name__
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.append(visit)

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        metrics = self._telemetry.metrics
        for label, number in Counter(f"{visit.source},{visit.status}" for visit in ended).items():
            metrics.add(counting.INGESTED, number, label)
        metrics.observe(counting.INGEST_SECONDS, [visit.seconds for visit in ended])
        if (least := least_level()) is not None:
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
    if status < _REFUSED:
        return "info"
    return "warning" if status < _FAILED else "error"
