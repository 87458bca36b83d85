"""The events of the shop: what happened, to which order, and as little else as a consumer needs."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec


class OrderCreated(msgspec.Struct, frozen=True, rename="camel"):
    """Somebody ordered something. The seed's OrderCreatedPayload."""

    order_id: UUID
    user_id: UUID
    amount: int
    occurred_at: datetime


class PaymentConfirmed(msgspec.Struct, frozen=True, rename="camel"):
    """An order is paid. No card, no name: who needs more, asks the shop."""

    order_id: UUID
    occurred_at: datetime


EVENTS = (OrderCreated, PaymentConfirmed)
"""Both are about an order: their aggregate is the order, so what happens to one arrives in its order."""
