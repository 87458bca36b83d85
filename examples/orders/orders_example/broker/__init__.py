"""Brokers: who executes an order. An adapter sends it there; the key makes the same order again the same order."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec

from orders_example.order import Order


class Fill(msgspec.Struct, frozen=True):
    """A part of an order that was executed: price, quantity, when."""

    px: float
    qty: float
    ts: datetime


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker did with an order."""

    order_ref: str
    fills: tuple[Fill, ...]
    fee: float = 0


class BrokerAdapter(Protocol):
    """Sends orders to one broker.

    `send` may be called again for the same `idempotency_key`, by another process too: the broker executes it once, and
    answers the same. AdapterError: it was not executed, and why. The caller limits its time by cancelling it.
    """

    name: str

    async def send(self, order: Order) -> Execution:
        """Have it executed."""
