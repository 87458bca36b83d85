"""Stripe's side of the show: events as Stripe writes them, signed as Stripe's own library does."""

from __future__ import annotations

import json
import time
from typing import Any

import stripe


def intent_event(
    id: str, type: str, intent: str, *, at: int, participant: str | None, amount: int = 4200, email: str | None = None
) -> dict[str, Any]:
    """An event about a payment intent: `payment_intent.succeeded`, `payment_intent.payment_failed`."""
    metadata = {} if participant is None else {"participant_id": participant}
    found = {
        "id": intent, "object": "payment_intent", "amount": amount, "currency": "jpy", "metadata": metadata,
        "receipt_email": email,
    }  # fmt: skip
    return _event(id, type, at, found)


def refund_event(id: str, intent: str, *, at: int, participant: str | None, amount: int = 4200) -> dict[str, Any]:
    """`charge.refunded`."""
    metadata = {} if participant is None else {"participant_id": participant}
    found = {
        "id": f"ch_{intent}", "object": "charge", "payment_intent": intent, "amount": amount, "refunded": True,
        "amount_refunded": amount, "currency": "jpy", "metadata": metadata,
    }  # fmt: skip
    return _event(id, "charge.refunded", at, found)


def _event(id: str, type: str, at: int, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": id, "object": "event", "api_version": stripe.api_version, "created": at, "type": type, "livemode": False,
        "pending_webhooks": 1, "data": {"object": found},
    }  # fmt: skip


def signed(event: dict[str, Any], secret: str, *, now: float | None = None) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of Stripe's request."""
    body, at = json.dumps(event), int(time.time() if now is None else now)
    signature = stripe.WebhookSignature._compute_signature(f"{at}.{body}", secret)  # the library has no public one
    return body.encode(), {"Stripe-Signature": f"t={at},v1={signature}", "Content-Type": "application/json"}
