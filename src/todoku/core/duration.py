"""Parses durations such as `10s`, `1d10h` and `500ms`, and the headers with which a receiver asks for a later retry."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from todoku.core.errors import InvalidMessage

DAY: Final = 86_400.0
LONGEST: Final = 366 * DAY
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}
_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?", re.ASCII)
_MAX_LENGTH: Final = 64
_HINT: Final = "numbers with their units, ms s m h d: 30s, 1h30m, 1d10h"

_RETRY_HEADERS: Final = ("retry-after", "x-ratelimit-reset", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
"""Headers that say when to send again, by precedence: the first one that can be parsed counts."""


def interval(text: str, *, what: str, longest: float = LONGEST) -> float:
    """Returns the seconds of a duration such as `1h30m3s`; raises InvalidMessage, which names it as `what`."""
    found = _parse(text)
    if found is None:
        raise InvalidMessage(f"{what} cannot be {text[:_MAX_LENGTH]!r}", hint=_HINT)
    if found > longest:
        raise InvalidMessage(f"{what} cannot be as long as {text!r}", hint=f"{longest:.0f} seconds at most")
    return found


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the seconds to wait that a response with these headers asks for; None: it asks for none.

    A value is a number of seconds, a date or a duration; `now` is in unix seconds. A wait of more than a day is taken
    for a mistake, such as a unix time, and ignored.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    for name in _RETRY_HEADERS:
        if name in lower and (wait := _parse_wait(lower[name].strip(), now)) is not None:
            return wait if wait <= DAY else None
    return None


def _parse(text: str) -> float | None:
    """Returns the seconds of a duration in Go's syntax, to which days are added; None: it is not a duration."""
    if text == "0":
        return 0.0
    total, at = 0.0, 0
    while at < len(text) <= _MAX_LENGTH and (part := _PART.match(text, at)):
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total if text and at == len(text) else None


def _parse_wait(text: str, now: float) -> float | None:
    if len(text) <= _MAX_LENGTH and _SECONDS.fullmatch(text):
        return float(text)
    if (found := _parse(text)) is not None:
        return found
    moment = _date(text)
    return None if moment is None else max(0.0, moment - now)


def _date(text: str) -> float | None:
    """Returns the unix time of a date such as `Wed, 21 Oct 2026 07:28:00 GMT`; None: it is not a date."""
    if "," not in text or len(text) > _MAX_LENGTH:
        return None
    try:
        found = parsedate_to_datetime(text)
        moment = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return moment if math.isfinite(moment) else None
