"""Durations as text: parses `10s`, `1d10h`, `500ms`, and the wait that a receiver's answer requests; writes `3 min`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from todoku.core.errors import InvalidMessage

DAY: Final = 86_400.0
LONGEST: Final = 366 * DAY
UNITS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY,
}  # fmt: skip
"""Seconds of each unit."""

_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|ms|s|m|h|d|w)", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?", re.ASCII)
_MAX_LENGTH: Final = 64
_HINT: Final = "numbers with their units, ms s m h d: 30s, 1h30m, 1d10h"

_ASKING: Final = ("retry-after", "x-ratelimit-reset", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
"""Headers by which a receiver says when to come back; the first of them that can be read counts."""


_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds(moment: datetime) -> int:
    """Returns the whole milliseconds since 1970, never rounded up: a search that begins there finds the moment."""
    return (moment - _1970) // _MILLISECOND


def interval(text: str, *, what: str, longest: float = LONGEST) -> float:
    """Seconds of `1h30m3s`, or InvalidMessage naming `what`."""
    found = parse_duration(text)
    if found is None:
        raise InvalidMessage(f"{what} cannot be {text[:_MAX_LENGTH]!r}", hint=_HINT)
    if found > longest:
        raise InvalidMessage(f"{what} cannot be as long as {text!r}", hint=f"{longest:.0f} seconds at most")
    return found


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the answer with these headers asks to wait, `now` in seconds since 1970; None: it asks for nothing.

    Seconds, a date or a duration. More than a day is nobody's wish but a mistake, or a time since 1970: None too.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    for name in _ASKING:
        if name in lower and (wait := _wait(lower[name].strip(), now)) is not None:
            return wait if wait <= DAY else None
    return None


def parse_duration(text: str, *, bare: bool = False, weeks: bool = False) -> float | None:
    """Seconds of a duration as Go writes it, or with days; None: the text is no duration.

    `bare`: a number without a unit is seconds; else only `0` needs none. `weeks`: `w` is a unit too.
    """
    if text == "0" or (bare and len(text) <= _MAX_LENGTH and _SECONDS.fullmatch(text)):
        return float(text)
    total, at = 0.0, 0
    while at < len(text) <= _MAX_LENGTH and (part := _PART.match(text, at)) and (weeks or part[2] != "w"):
        total += float(part[1]) * UNITS[part[2]]
        at = part.end()
    return total if text and at == len(text) else None


_SHOWN: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span_text(seconds: float) -> str:
    """A duration for people, in its largest whole unit: `25 s`, `3 min`, `2 h`, `5 d`."""
    whole = max(0, int(seconds))
    size, unit = next((one for one in _SHOWN if whole >= one[0]), _SHOWN[-1])
    return f"{whole // size} {unit}"


def relative_time(seconds: float) -> str:
    """How far a time is from now, `seconds` after it: `3 min ago`, `in 2 h`, `now`."""
    if abs(seconds) < 1:
        return "now"
    return f"{span_text(seconds)} ago" if seconds > 0 else f"in {span_text(-seconds)}"


def _wait(text: str, now: float) -> float | None:
    if (found := parse_duration(text, bare=True)) is not None:
        return found
    moment = _moment(text)
    return None if moment is None else max(0.0, moment - now)


def _moment(text: str) -> float | None:
    """The moment of a date such as `Wed, 21 Oct 2026 07:28:00 GMT`; None: it is none."""
    if "," not in text or len(text) > _MAX_LENGTH:
        return None
    try:
        found = parsedate_to_datetime(text)
        moment = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return moment if math.isfinite(moment) else None
