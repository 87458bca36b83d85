"""The App that `todoku dev` runs, as its worker process imports it: the user's App, or an empty one.

It prints one line on the terminal for each attempt to send a request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, assert_never

from todoku.app import App
from todoku.core.control_characters import escape_controls
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import CALLBACK_TOPIC, TOPIC, request_of
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.engine.observability.log import LOGGER, LogEvent
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry

_TOPICS: Final = (TOPIC, CALLBACK_TOPIC)


class TerminalTelemetry(Telemetry):
    """Telemetry that also prints settled attempts on standard output."""

    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        """Records and prints these settled attempts."""
        super().settled(ended, seconds=seconds)
        lines = [describe_attempt(one) for one in ended if one.claim.topic in _TOPICS]
        with suppress(OSError, ValueError):  # the reader of the pipe has gone: no reason to stop working
            sys.stdout.write("".join(f"{_clock()} {escape_controls(line)}\n" for line in lines))
            sys.stdout.flush()


def describe_attempt(one: EndedAttempt) -> str:
    """`POST http://127.0.0.1:8081/500  HTTP_5XX, again in 12 s  (attempt 1 of 4, 3 ms)`."""
    claim, took = one.claim, round((one.ended - one.started) * 1000)
    number = f"attempt {claim.attempt} of {claim.max_attempts}"
    return f"{_describe_request(claim)}  {_describe_outcome(one)}  ({number}, {took} ms)"


def _describe_request(claim: Claimed) -> str:
    try:
        request = request_of(claim.headers)
    except InvalidMessage:
        request = None
    if request is None:
        return claim.destination
    callback = "" if request.source is None else " as a callback"
    return f"{request.method} {request.url}{callback}"


def _describe_outcome(one: EndedAttempt) -> str:
    settlement = one.settlement
    match settlement.status:
        case Status.SUCCEEDED:
            return "delivered"
        case Status.FAILED:
            return f"{settlement.reason}, again in {settlement.delay:.0f} s"
        case Status.ABORTED:
            return f"{settlement.reason}, dead letter"
        case Status.PENDING | Status.SENDING:
            return f"waits {settlement.delay:.0f} s"
        case _:
            assert_never(settlement.status)


def _clock() -> str:
    return datetime.now(UTC).astimezone().strftime("%H:%M:%S")


def _is_not_printed(record: logging.LogRecord) -> bool:
    """Whether a log record is not about an attempt that `TerminalTelemetry` prints."""
    event = record.msg
    return not (isinstance(event, LogEvent) and event.name == "settled" and event.fields.get("topic") in _TOPICS)


def _load() -> App:
    name = find_app_name()
    box = App() if name is None else load_app(name)
    box.telemetry = TerminalTelemetry(span_ratio=box.settings.span_ratio)
    LOGGER.addFilter(_is_not_printed)
    return box


box: Final = _load()
