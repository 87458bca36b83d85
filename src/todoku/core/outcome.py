"""What an attempt came to: Done, Retry, Abort or Snooze. Handlers return one of them, or raise it.

The three that can be raised are exceptions for that reason alone; they are values all the same:
compared by content, never changed after they were made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.msgspec_warmup import learned

Duration = float | timedelta
"""Seconds, or a timedelta."""

ERROR_LENGTH: Final = 512
"""The readable text of a failure is cut here (S0-53)."""

KEPT_BODY_BYTES: Final = 16 << 10
KEPT_HEADER_BYTES: Final = 8 << 10

LONGEST: Final = 10 * 365 * 86_400.0
"""Nobody waits longer than ten years: what overflows a timestamp would fail the settle of a whole batch."""

_LOOKED_AT: Final = 16 * ERROR_LENGTH
"""A longer text is cut here before it is searched for URLs."""

_USER: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^\s/?#'\"<>]*@", re.IGNORECASE)
_WORD: Final = re.compile(r"(?:[^\s'\"<>]|'(?=[\w%&=]))+")
"""What may hold a URL: up to a space or a quote. An apostrophe within a query does not end it."""

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def seconds(duration: Duration, *, what: str = "a duration") -> float:
    """`duration` in seconds; refuses what is negative, longer than ten years, or not a number."""
    try:
        value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= LONGEST:
        raise InvalidMessage(f"{what} cannot be {duration!r}", hint="give seconds ≥ 0 or a timedelta, at most 10 years")
    return value


def is_reason(reason: object) -> bool:
    """Whether this can be a reason: one of few, not a sentence, because it becomes a metric label."""
    return isinstance(reason, str) and _REASON.fullmatch(reason) is not None


def reason_code(reason: str) -> str:
    """`reason`, having checked that it can be one."""
    if not is_reason(reason):
        raise InvalidMessage(
            f"{reason!r} is not a reason",
            hint="use UPPER_SNAKE_CASE of at most 64 characters; text goes in detail",
        )
    return reason


def error_text(text: str) -> str:
    """`text` as it is stored: no NUL (PostgreSQL has none), no broken surrogates, no secrets of a URL, cut at 512."""
    clean = without_url_secrets(_storable(text[:_LOOKED_AT]))
    return clean if len(clean) <= ERROR_LENGTH else clean[: ERROR_LENGTH - 1] + "…"


def without_url_secrets(text: str) -> str:
    """`text` without the queries of URLs, and without the users and passwords in them: clients quote the URL they asked
    for in their errors, and tokens are in both places. Costs as much as the text is long."""
    if "/" not in text:
        return text
    return _WORD.sub(_without_query, _USER.sub(r"\1", text))


def _without_query(word: re.Match[str]) -> str:
    """A word of a text, cut behind the path if it holds a URL, or a path alone: `requests` says "Max retries exceeded
    with url: /hook?token=…"."""
    found = word[0]
    begins = found.find("/")
    ends = found.find("?", begins) if begins >= 0 else -1
    if "://" in found and (fragment := found.find("#", begins)) >= 0:
        ends = fragment if ends < 0 else min(ends, fragment)
    return found if ends < 0 or ends == len(found) - 1 else f"{found[:ends]}?…"


def _storable(text: str) -> str:
    return text.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


class Response(msgspec.Struct, frozen=True):
    """What a receiver answered over HTTP, cut to what is kept of it (`kept_response`)."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""

    def __hash__(self) -> int:
        return hash((self.status, self.body))

    def without_content(self) -> Response:
        """What may be kept of an answer to a sealed message."""
        return Response(self.status)


learned(Response)


def kept_response(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Response:
    """An answer as it is kept: of its body the first 16 KiB, of its headers those that fit into 8 KiB; values of one
    name are joined."""
    kept: dict[str, str] = {}
    left = KEPT_HEADER_BYTES
    for name, value in headers:
        clean = _storable(value)
        if (left := left - len(name) - len(clean.encode())) < 0:
            break
        kept[name] = f"{kept[name]}, {clean}" if name in kept else clean
    return Response(status, kept, body[:KEPT_BODY_BYTES])


class Done(msgspec.Struct, frozen=True):
    """The attempt succeeded. `result` is JSON text, kept if it is not None; `response` is told to a callback."""

    result: str | None = None
    response: Response | None = None


DONE: Final = Done()
"""Most attempts end so. The engine knows it by its identity, and asks nothing more about it."""


class _Raisable(Exception):
    """An outcome that can be raised. Equal when the content is."""

    def _content(self) -> tuple[object, ...]:
        return tuple(sorted(vars(self).items()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self), self._content()))


class Retry(_Raisable):
    """The attempt failed and may be made again: after `after` seconds, or after the policy's back-off.

    `response`: what the receiver answered, if it is one that answers over HTTP.
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
    """The attempt failed and another would fail too: a dead letter, now. `response`: as in Retry."""

    def __init__(self, reason: str, detail: str = "", response: Response | None = None) -> None:
        super().__init__(reason, detail, *(() if response is None else (response,)))
        self.reason = reason_code(reason)
        self.detail = error_text(detail)
        self.response = response


class Snooze(_Raisable):
    """Not now: run again after `for_` seconds, without counting this attempt (capped)."""

    def __init__(self, for_: Duration) -> None:
        super().__init__(for_)
        self.for_ = seconds(for_, what="Snooze(…)")


Outcome = Done | Retry | Abort | Snooze
