"""What a terminal shows: the colour of a status, and one short line for each attempt that a worker settles."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TextIO, assert_never

from todoku.app import App
from todoku.core.control_characters import escape_controls
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import CALLBACK_TOPIC, TOPIC, request_of
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.engine.observability.log import LOGGER, LogEvent
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry

_RED, _GREEN, _YELLOW, _BLUE, _FAINT, _BOLD = "31", "32", "33", "34", "2", "1"
_COLOURS: Final[Mapping[str, str]] = {
    "succeeded": _GREEN, "sending": _BLUE, "failed": _YELLOW, "aborted": _RED,
    "ok": _GREEN, "warn": _YELLOW, "problem": _RED, "holds": _GREEN, "broken": _RED,
    "faint": _FAINT, "bold": _BOLD,
}  # fmt: skip
"""The colour of each status of a delivery, as on the overview page; and those of findings, notes and headings."""


def takes_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal with colours that `NO_COLOR` (https://no-color.org) does not forbid."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, meaning: str, stream: TextIO) -> str:
    """The text in the colour of a status or another meaning, if the stream takes colours and the meaning has one."""
    colour = _COLOURS.get(meaning)
    return text if colour is None or not takes_colour(stream) else f"\x1b[{colour}m{text}\x1b[0m"


# ------------------------------------------------------------------------------------------- one line an attempt

Chosen = Callable[[str], bool]
"""Whether attempts of messages of this topic are printed."""


def is_request(topic: str) -> bool:
    """Whether messages of this topic are HTTP requests."""
    return topic in (TOPIC, CALLBACK_TOPIC)


def print_attempts(box: App, stream: TextIO, chosen: Chosen = lambda _: True) -> None:
    """Lets the App print a short line for each attempt of the chosen topics, instead of the log line with all fields.

    Called again it only chooses other topics: what was printed on one stream stays there.
    """
    if isinstance(box.telemetry, TerminalTelemetry):
        box.telemetry.chosen = chosen
    else:
        box.telemetry = TerminalTelemetry(stream, chosen, span_ratio=box.settings.span_ratio)
    LOGGER.addFilter(lambda record: not _is_settled_line(record, chosen))


def _is_settled_line(record: logging.LogRecord, chosen: Chosen) -> bool:
    event = record.msg
    return isinstance(event, LogEvent) and event.name == "settled" and chosen(event.fields.get("topic", ""))


class TerminalTelemetry(Telemetry):
    """Telemetry that also prints settled attempts of the chosen topics."""

    def __init__(self, stream: TextIO, chosen: Chosen, *, span_ratio: float) -> None:
        super().__init__(span_ratio=span_ratio)
        self._stream, self.chosen = stream, chosen

    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        """Records and prints these settled attempts."""
        super().settled(ended, seconds=seconds)
        lines = [_line(one, self._stream) for one in ended if self.chosen(one.claim.topic)]
        with suppress(OSError, ValueError):  # the reader of the pipe has gone: no reason to stop working
            self._stream.write("".join(lines))
            self._stream.flush()


def _line(one: EndedAttempt, stream: TextIO) -> str:
    at = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
    return f"{at} {paint(escape_controls(describe_attempt(one)), one.settlement.status.value, stream)}\n"


def describe_attempt(one: EndedAttempt) -> str:
    """`#5 POST http://127.0.0.1:8081/500  failed: HTTP_5XX, again in 12 s  (attempt 1 of 4, 3 ms)`."""
    claim, took = one.claim, round((one.ended - one.started) * 1000)
    number = f"attempt {claim.attempt} of {claim.max_attempts}"
    return f"#{claim.id} {_describe_work(claim)}  {_describe_outcome(one)}  ({number}, {took} ms)"


def _describe_work(claim: Claimed) -> str:
    """The request, or `topic → destination`; of a job, whose topic is its name, only that."""
    try:
        request = request_of(claim.headers) if is_request(claim.topic) else None
    except InvalidMessage:
        request = None
    if request is None:
        return route_text(claim.topic, claim.destination)
    callback = "" if request.source is None else " as a callback"
    return f"{request.method} {request.url}{callback}"


def route_text(topic: str | None, destination: str | None) -> str:
    """`order.created → warehouse`; one name if both are the same, as of a job, or if one is not known."""
    names = [name for name in (topic, destination) if name]
    return " → ".join(dict.fromkeys(names))


def _describe_outcome(one: EndedAttempt) -> str:
    settlement = one.settlement
    match settlement.status:
        case Status.SUCCEEDED:
            return "succeeded"
        case Status.FAILED:
            return f"failed: {_cause(one)}, again in {settlement.delay:.0f} s"
        case Status.ABORTED:
            return f"aborted: {_cause(one)}, a dead letter"
        case Status.PENDING | Status.SENDING:
            return f"pending: waits {settlement.delay:.0f} s"
        case _:
            assert_never(settlement.status)


def _cause(one: EndedAttempt) -> str:
    """The reason, with the type of the exception if there was one: never its text, which may quote a payload."""
    return f"{one.settlement.reason}" + (f" ({one.error_type})" if one.error_type else "")
