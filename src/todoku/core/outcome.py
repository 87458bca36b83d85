"""The outcome of an attempt: Done, Retry, Abort or Snooze. Handlers return or raise it.

Retry, Abort and Snooze are exceptions only so that they can be raised. They are values: compared by content, and never
changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.msgspec_warmup import warm_up

Duration = float | timedelta
"""Seconds, or a timedelta."""

ERROR_LENGTH: Final = 512
"""Error texts are cut to this many characters (S0-53)."""

KEPT_BODY_BYTES: Final = 16 << 10
KEPT_HEADER_BYTES: Final = 8 << 10

LONGEST: Final = 10 * 365 * 86_400.0
"""Ten years. A longer wait could overflow a timestamp, and so fail the settle of a whole batch."""

_LOOKED_AT: Final = 16 * ERROR_LENGTH
"""Characters of an error text that are searched for URLs; the rest is cut before."""

_USER: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^\s/?#'\"<>]*@", re.IGNORECASE)
_WORD: Final = re.compile(r"(?:[^\s'\"<>]|'(?=[\w%&=]))+")
"""Text that may contain a URL: up to a space or a quote. An apostrophe within a query does not end it."""

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def seconds(duration: Duration, *, what: str = "a duration") -> float:
    """Returns `duration` in seconds; raises InvalidMessage if it is negative, over ten years, or not a number."""
    try:
        value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= LONGEST:
        raise InvalidMessage(f"{what} cannot be {duration!r}", hint="give seconds ≥ 0 or a timedelta, at most 10 years")
    return value


def is_reason(reason: object) -> bool:
    """Whether this can be a reason: a code and not a sentence, because it becomes a metric label."""
    return isinstance(reason, str) and _REASON.fullmatch(reason) is not None


def reason_code(reason: str) -> str:
    """Returns `reason` if it can be one; raises InvalidMessage."""
    if not is_reason(reason):
        raise InvalidMessage(
            f"{reason!r} is not a reason",
            hint="use UPPER_SNAKE_CASE of at most 64 characters; text goes in detail",
        )
    return reason


def error_text(text: str) -> str:
    """Returns `text` as it is stored: without NUL (PostgreSQL cannot store it), lone surrogates and secrets in URLs,
    and at most 512 characters long."""
    clean = without_url_secrets(storable(text[:_LOOKED_AT]))
    return clean if len(clean) <= ERROR_LENGTH else clean[: ERROR_LENGTH - 1] + "…"


def without_url_secrets(text: str) -> str:
    """Removes queries, user names and passwords from the URLs in `text`: HTTP clients quote URLs in their errors, and
    both places may contain tokens. Takes linear time."""
    if "/" not in text:
        return text
    return _WORD.sub(_without_query, _USER.sub(r"\1", text))


def _without_query(word: re.Match[str]) -> str:
    """Cuts a word after the path if it contains a URL or only a path: `requests` reports "Max retries exceeded with
    url: /hook?token=…"."""
    text = word[0]
    start = text.find("/")
    end = text.find("?", start) if start >= 0 else -1
    if "://" in text and (fragment := text.find("#", start)) >= 0:
        end = fragment if end < 0 else min(end, fragment)
    return text if end < 0 or end == len(text) - 1 else f"{text[:end]}?…"


def storable(text: str) -> str:
    """Returns `text` without NUL and lone surrogates, which the databases cannot store."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


class Response(msgspec.Struct, frozen=True):
    """A receiver's HTTP response, cut to the part that is stored (`kept_response`)."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""

    def __hash__(self) -> int:
        return hash((self.status, self.body))

    def without_content(self) -> Response:
        """Returns the part that may be stored if the message is encrypted: only the status."""
        return Response(self.status)


warm_up(Response)


def trim_response(
    status: int, headers: Iterable[tuple[str, str]], body: bytes, *, most: int = KEPT_BODY_BYTES
) -> Response:
    """Returns the part of a response that is stored: the first `most` bytes of the body, and the headers that fit into
    8 KiB.

    The values of a repeated header are joined by commas.
    """
    kept: dict[str, str] = {}
    left = KEPT_HEADER_BYTES
    for name, value in headers:
        clean = storable(value)
        if (left := left - len(name) - len(clean.encode())) < 0:
            break
        kept[name] = f"{kept[name]}, {clean}" if name in kept else clean
    return Response(status, kept, body[:most])


class Traceback(msgspec.Struct, frozen=True):
    """The formatted traceback of a failed attempt, cut to the part that is stored."""

    text: str
    frames: str
    """The same without the texts of exceptions, which may quote a payload: what a log may show."""
    fingerprint: str
    """The same for failures of the same type in the same functions, whatever the line and the data."""


class Done(msgspec.Struct, frozen=True):
    """The attempt succeeded. `result` is JSON text, stored if it is not None; `response` is sent in a callback."""

    result: str | None = None
    response: Response | None = None


DONE: Final = Done()
"""The outcome of most attempts. The engine recognises it by identity and takes a shorter path."""


class _Raisable(Exception):
    """An outcome that can be raised. Two with the same content are equal."""

    def _content(self) -> tuple[object, ...]:
        return tuple(sorted(vars(self).items()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self), self._content()))


class Retry(_Raisable):
    """The attempt failed and is retried: after `after` seconds, or after the policy's back-off.

    `response`: that of an HTTP receiver.
    """

    def __init__(
        self,
        after: Duration | None = None,
        reason: str = "RETRY",
        detail: str = "",
        response: Response | None = None,
    ) -> None:
        super().__init__(after, reason, detail, *(() if response is None else (response,)))
        self.after = None if after is None else seconds(after, what="Retry(after=…)")
        self.reason = reason_code(reason)
        self.detail = error_text(detail)
        self.response = response


class Abort(_Raisable):
    """The attempt failed and a retry would fail, too: the delivery becomes a dead letter. `response`: as in Retry."""

    def __init__(self, reason: str, detail: str = "", response: Response | None = None) -> None:
        super().__init__(reason, detail, *(() if response is None else (response,)))
        self.reason = reason_code(reason)
        self.detail = error_text(detail)
        self.response = response


class Snooze(_Raisable):
    """Runs the delivery again after `for_` seconds, without counting this attempt (a limited number of times)."""

    def __init__(self, for_: Duration) -> None:
        super().__init__(for_)
        self.for_ = seconds(for_, what="Snooze(…)")


Outcome = Done | Retry | Abort | Snooze
