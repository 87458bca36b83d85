"""Why an order failed, whether another attempt may succeed, and the HTTP status of each: one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The seed's reason codes."""

    VALIDATION_ERROR = "VALIDATION_ERROR"
    BROKER_REJECTED = "BROKER_REJECTED"
    BROKER_TIMEOUT = "BROKER_TIMEOUT"
    BROKER_DOWN = "BROKER_DOWN"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"


OK: Final = 200

HTTP_STATUS: Final[Mapping[Reason, int]] = {
    Reason.VALIDATION_ERROR: 422,
    Reason.BROKER_REJECTED: 409,
    Reason.BROKER_TIMEOUT: 504,
    Reason.BROKER_DOWN: 503,
    Reason.INTERNAL_ERROR: 500,
    Reason.IDEMPOTENCY_CONFLICT: 409,
}
"""What the ledger stores for a repeat of an order that failed."""

TRANSIENT: Final = frozenset({Reason.BROKER_TIMEOUT, Reason.BROKER_DOWN, Reason.INTERNAL_ERROR})
"""Another attempt may succeed. The others would fail again."""

_TODOKU: Final[Mapping[str, Reason]] = {"BAD_PAYLOAD": Reason.VALIDATION_ERROR}


class AdapterError(Exception):
    """A broker did not do it, and knows why."""

    def __init__(self, reason: Reason = Reason.INTERNAL_ERROR, detail: str = "") -> None:
        super().__init__(detail or reason.value)
        self.reason = reason


def reason_code_from(error: Exception) -> Reason:
    """The reason behind whatever an adapter raised."""
    match error:
        case AdapterError():
            return error.reason
        case TimeoutError():
            return Reason.BROKER_TIMEOUT
        case OSError():
            return Reason.BROKER_DOWN
        case _:
            return Reason.INTERNAL_ERROR


def reason_of_end(reason: str | None) -> Reason:
    """The reason of a delivery that todoku ended: its own ones are internal to whoever ordered."""
    if reason in set(Reason):
        return Reason(reason)
    return _TODOKU.get(reason or "", Reason.INTERNAL_ERROR)
