"""What Stripe tells, and what it means for a payment. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

import todoku

Status = Literal["failed", "succeeded", "refunded"]

STATUSES: Final[dict[str, Status]] = {
    "payment_intent.payment_failed": "failed",
    "payment_intent.succeeded": "succeeded",
    "charge.refunded": "refunded",
}
"""The events that change a payment. Stripe's times are whole seconds: of one second, the later of these counts."""

RANK: Final = {status: rank for rank, status in enumerate(STATUSES.values())}


class Data(msgspec.Struct, frozen=True):
    """What an event is about: a payment intent, or a charge of one."""

    object: dict[str, Any]


class StripeEvent(msgspec.Struct, frozen=True):
    """An event as Stripe posts it. Whatever else is in it is left alone."""

    id: str
    type: str
    created: int
    data: Data


class Change(msgspec.Struct, frozen=True):
    """What an event says of a payment."""

    event_id: str
    type: str
    intent: str
    status: Status
    at: int
    amount: int
    currency: str
    participant_id: str | None
    email: str | None


def participant_of(event: StripeEvent) -> str | None:
    """Whose payment it is, if the event says so."""
    metadata = event.data.object.get("metadata")
    named = metadata.get("participant_id") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) and named else None


def change_of(event: StripeEvent) -> Change | None:
    """What an event changes; None: nothing of ours. Abort: it should, and does not say what."""
    status = STATUSES.get(event.type)
    if status is None:
        return None
    found = event.data.object
    intent = found.get("payment_intent") if status == "refunded" else found.get("id")
    amount = found.get("amount_refunded") if status == "refunded" else found.get("amount")
    if not isinstance(intent, str) or not isinstance(amount, int):
        raise todoku.Abort("MISSING_FIELD", f"{event.type} without its payment intent or its amount")
    return Change(
        event_id=event.id,
        type=event.type,
        intent=intent,
        status=status,
        at=event.created,
        amount=amount,
        currency=str(found.get("currency") or ""),
        participant_id=participant_of(event),
        email=found.get("receipt_email") or None,
    )
