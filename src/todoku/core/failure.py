"""The only classifier of failures: what an exception or an HTTP response means for the next attempt.

Transient ⇒ Retry. Deterministic ⇒ Abort. Unknown ⇒ Retry, with the reason INTERNAL_ERROR.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from todoku.core import backoff
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze, error_text, is_reason

NON_RETRYABLE_STATUS: Final = 489
NON_RETRYABLE_HEADER: Final = "Upstash-NonRetryable-Error"
"""A receiver that answers with this status and with this header set to `true` does not want a retry (S4-23)."""

_BUSY_STATUSES: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})

Reasons = Mapping[type[BaseException], tuple[str, bool]]
"""For each type of exception: the reason, and whether another attempt may succeed."""

# Looked up along the exception's MRO, so that the order here does not matter.
_REASONS: Final[Reasons] = {
    TimeoutError: ("TIMEOUT", True),
    ConnectionError: ("NETWORK", True),
    OSError: ("NETWORK", True),
    MemoryError: ("RESOURCES", True),
    msgspec.ValidationError: ("BAD_PAYLOAD", False),
    msgspec.DecodeError: ("BAD_PAYLOAD", False),
    json.JSONDecodeError: ("BAD_PAYLOAD", False),
    UnicodeDecodeError: ("BAD_PAYLOAD", False),
    # Retryable, because the next deploy may bring the missing file or permission. They are listed only to keep them
    # out of NETWORK.
    FileNotFoundError: ("INTERNAL_ERROR", True),
    PermissionError: ("INTERNAL_ERROR", True),
}


class DeliveryError(Exception):
    """A failure with a known reason. Destinations raise it."""

    def __init__(self, reason: str, detail: str = "", *, retryable: bool = True) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.retryable = retryable


class Retrying(msgspec.Struct, frozen=True):
    """Which exceptions a job retries: `only` these (None: all that are transient), and `never` those."""

    only: tuple[type[Exception], ...] | None = None
    never: tuple[type[Exception], ...] = ()

    def forbids(self, error: Exception) -> bool:
        """Whether the job is not to be retried after `error`, even if the classifier would retry it."""
        return isinstance(error, self.never) or (self.only is not None and not isinstance(error, self.only))


def classify(
    error: Exception, retrying: Retrying | None = None, *, reasons: Reasons = _REASONS
) -> Retry | Abort | Snooze:
    """Returns the outcome of an attempt that raised `error`; a raised outcome is returned as it is.

    `reasons`: a destination passes its own, which cover the errors of its client library.
    """
    if isinstance(error, Retry | Abort | Snooze):
        return error
    outcome = _classify(error, reasons)
    if retrying is not None and isinstance(outcome, Retry) and retrying.forbids(error):
        return Abort(outcome.reason, outcome.detail)
    return outcome


def _classify(error: Exception, reasons: Reasons) -> Retry | Abort:
    if isinstance(error, DeliveryError):
        reason, detail = (error.reason, error.detail) if is_reason(error.reason) else ("INTERNAL_ERROR", "")
        return _failure(reason, detail or _text(error), retryable=error.retryable)
    text = _text(error)
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for ancestor in type(error).__mro__:
        if ancestor in reasons:
            reason, retryable = reasons[ancestor]
            return _failure(reason, detail, retryable=retryable)
    return Retry(reason="INTERNAL_ERROR", detail=detail)


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's policy for client errors (4xx)."""

    retry_4xx: bool = True
    final_4xx: bool = False
    """The header that forbids a retry counts with every 4xx, not only with 489."""


def classify_status(
    status: int,
    *,
    retry_after: float | None = None,
    final: bool = False,
    answering: Answering = Answering(),  # noqa: B008 - frozen
    response: Response | None = None,
) -> Outcome:
    """Returns the outcome of an HTTP response. `final`: it has the header that forbids a retry."""
    if 200 <= status < 300:
        return Done(response=response)
    detail = f"HTTP {status}"
    client_error = 400 <= status < 500
    if final and (status == NON_RETRYABLE_STATUS or (client_error and answering.final_4xx)):
        return Abort("HTTP_NON_RETRYABLE", detail, response)
    if status == HTTPStatus.GONE:
        return Abort("HTTP_GONE", detail, response)
    reason = _reason(status)
    if reason is None or (reason == "HTTP_4XX" and not answering.retry_4xx):
        return Abort(reason or "HTTP_UNEXPECTED", detail, response)  # 1xx is not a final response
    # The receiver's Retry-After counts unless it is implausible.
    after = retry_after if retry_after is not None and 0 <= retry_after <= backoff.LONGEST else None
    return Retry(after, reason, detail, response)


def _reason(status: int) -> str | None:
    if status in _BUSY_STATUSES:
        return "HTTP_BUSY"
    if status >= 500:
        return "HTTP_5XX"
    # Redirects are not followed: their target has not passed the address guard.
    return "HTTP_4XX" if status >= 400 else "HTTP_3XX" if status >= 300 else None


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception with a broken __str__ must be classified, too
        return "(its text cannot be read)"


def _failure(reason: str, detail: str, *, retryable: bool) -> Retry | Abort:
    text = error_text(detail)
    return Retry(reason=reason, detail=text) if retryable else Abort(reason, text)
