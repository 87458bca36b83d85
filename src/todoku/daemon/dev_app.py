"""What `todoku dev` runs, as its worker process imports it: the App that is named, or none of one's own.

Of every attempt to send a request there is one line on the terminal, for a person.
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
from todoku.daemon.app_loader import load_app, named_app
from todoku.engine.observability.log import LOGGER, LogEvent
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry

_TOPICS: Final = (TOPIC, CALLBACK_TOPIC)


class Lines(Telemetry):
    """Telemetry that also tells a person, on standard output."""

    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        """These were settled."""
        super().settled(ended, seconds=seconds)
        told = [told_line(one) for one in ended if one.claim.topic in _TOPICS]
        with suppress(OSError, ValueError):  # nobody reads any more: not a reason to stop
            sys.stdout.write("".join(f"{_clock()} {escape_controls(line)}\n" for line in told))
            sys.stdout.flush()


def told_line(one: EndedAttempt) -> str:
    """`POST http://127.0.0.1:8081/500  HTTP_5XX, again in 12 s  (attempt 1 of 4, 3 ms)`."""
    claim, took = one.claim, round((one.ended - one.started) * 1000)
    return f"{_where(claim)}  {_what(one)}  (attempt {claim.attempt} of {claim.max_attempts}, {took} ms)"


def _where(claim: Claimed) -> str:
    try:
        request = request_of(claim.headers)
    except InvalidMessage:
        request = None
    if request is None:
        return claim.destination
    callback = "" if request.source is None else " as a callback"
    return f"{request.method} {request.url}{callback}"


def _what(one: EndedAttempt) -> str:
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


def _told_otherwise(record: logging.LogRecord) -> bool:
    """Whether a line of the log is not the one that `Lines` tells better."""
    event = record.msg
    return not (isinstance(event, LogEvent) and event.name == "settled" and event.fields.get("topic") in _TOPICS)


def _made() -> App:
    name = named_app()
    box = App() if name is None else load_app(name)
    box.telemetry = Lines(span_ratio=box.settings.span_ratio)
    LOGGER.addFilter(_told_otherwise)
    return box


box: Final = _made()
