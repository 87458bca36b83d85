"""The one classifier: what an exception or an HTTP answer means for the next attempt.

Transient ⇒ Retry. Deterministic ⇒ Abort. Unknown ⇒ Retry, and visible under INTERNAL_ERROR.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from todoku.core import backoff
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze, error_text, is_reason

NON_RETRYABLE_STATUS: Final = 489
"""The answer by which a receiver says: do not send this again (S4-23)."""

_BUSY_STATUSES: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})

Reasons = Mapping[type[BaseException], tuple[str, bool]]
"""What exceptions mean: the reason, and whether another attempt may succeed."""

# Looked up along the exception's own ancestry, nearest first, so that the order here does not matter.
_REASONS: Final[Reasons] = {
    TimeoutError: ("TIMEOUT", True),
    ConnectionError: ("NETWORK", True),
    OSError: ("NETWORK", True),
    MemoryError: ("RESOURCES", True),
    msgspec.ValidationError: ("BAD_PAYLOAD", False),
    msgspec.DecodeError: ("BAD_PAYLOAD", False),
    json.JSONDecodeError: ("BAD_PAYLOAD", False),
    UnicodeDecodeError: ("BAD_PAYLOAD", False),
    # A file that is not there or not ours will not be there in five seconds either: but a deploy may
    # bring it, so these stay retryable; they are named only to keep them out of NETWORK.
    FileNotFoundError: ("INTERNAL_ERROR", True),
    PermissionError: ("INTERNAL_ERROR", True),
}


class DeliveryError(Exception):
    """A failure that knows itself: what destinations raise when they can tell the cause."""

    def __init__(self, reason: str, detail: str = "", *, retryable: bool = True) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.retryable = retryable


class Retrying(msgspec.Struct, frozen=True):
    """Which exceptions a job retries: `only` these (None: any that may pass), and `never` these."""

    only: tuple[type[Exception], ...] | None = None
    never: tuple[type[Exception], ...] = ()

    def forbids(self, error: Exception) -> bool:
        """Whether the next attempt is ruled out, whatever the classifier says."""
        return isinstance(error, self.never) or (self.only is not None and not isinstance(error, self.only))


def classify(
    error: Exception, retrying: Retrying | None = None, *, reasons: Reasons = _REASONS
) -> Retry | Abort | Snooze:
    """What `error`, raised by a handler, means; an outcome that was raised is what it says.

    `reasons`: a destination knows better what the errors of its client library mean.
    """
    if isinstance(error, Retry | Abort | Snooze):
        return error
    outcome = _classified(error, reasons)
    if retrying is not None and isinstance(outcome, Retry) and retrying.forbids(error):
        return Abort(outcome.reason, outcome.detail)
    return outcome


def _classified(error: Exception, reasons: Reasons) -> Retry | Abort:
    if isinstance(error, DeliveryError):
        reason, detail = (error.reason, error.detail) if is_reason(error.reason) else ("INTERNAL_ERROR", "")
        return _failure(reason, detail or _text(error), retryable=error.retryable)
    detail = f"{type(error).__name__}: {_text(error)}"
    for ancestor in type(error).__mro__:
        if ancestor in reasons:
            reason, retryable = reasons[ancestor]
            return _failure(reason, detail, retryable=retryable)
    return Retry(reason="INTERNAL_ERROR", detail=detail)


def classify_status(status: int, *, retry_after: float | None = None, retry_4xx: bool = True) -> Outcome:
    """What an HTTP answer means. `retry_4xx` is the sender's policy for the client errors that are left."""
    if 200 <= status < 300:
        return Done()
    detail = f"HTTP {status}"
    if status == NON_RETRYABLE_STATUS:
        return Abort("NON_RETRYABLE", detail)
    if status in _BUSY_STATUSES or status >= 500:
        # What a receiver says about the future is believed if it makes sense.
        after = retry_after if retry_after is not None and 0 <= retry_after <= backoff.LONGEST else None
        return Retry(after=after, reason="HTTP_5XX" if status >= 500 else "HTTP_BUSY", detail=detail)
    if 400 <= status < 500:
        return _failure("HTTP_4XX", detail, retryable=retry_4xx)
    # Redirects are not followed (they lead where nobody checked), and a bare 1xx is no answer.
    return Abort("HTTP_UNEXPECTED", detail)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever an error does to its own text, it is classified
        return "(its text cannot be read)"


def _failure(reason: str, detail: str, *, retryable: bool) -> Retry | Abort:
    text = error_text(detail)
    return Retry(reason=reason, detail=text) if retryable else Abort(reason, text)
