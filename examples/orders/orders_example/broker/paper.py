"""A broker of paper: fills, partial fills, rejections, latency and outages, by scenario."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, assert_never

from orders_example.broker import Execution, Fill
from orders_example.broker.scenario import Scenario, Step
from orders_example.order import Order
from orders_example.reasons import AdapterError, Reason

FEE: Final = Decimal("0.0002")
"""Of the amount traded."""

_TICK: Final = Decimal("0.01")


class PaperAdapter:
    """Executes orders in memory, each key once while the process lives."""

    name = "paper"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._attempts: Counter[str] = Counter()
        self._executed: dict[str, Execution] = {}

    async def send(self, order: Order) -> Execution:
        """As BrokerAdapter.send."""
        key = order.idempotency_key
        if (before := self._executed.get(key)) is not None:
            return before
        step = self._scenario.step(order.instrument, self._attempts[key])
        self._attempts[key] += 1
        execution = await self._executed_by(step, order)
        return self._executed.setdefault(key, execution)

    async def _executed_by(self, step: Step, order: Order) -> Execution:
        match step.kind:
            case "fill":
                return _filled(order, Decimal(1))
            case "partial":
                if order.time_in_force == "FOK":
                    raise AdapterError(Reason.BROKER_REJECTED, "not all of it can be filled")
                return _filled(order, Decimal(step.amount or 50) / 100)
            case "latency":
                await asyncio.sleep(step.amount / 1000)
                return _filled(order, Decimal(1))
            case "timeout":
                await asyncio.Event().wait()  # for ever: whoever asks has a limit
                raise AssertionError("nobody sets it")
            case "reject":
                raise AdapterError(Reason.BROKER_REJECTED, "no margin")
            case "invalid":
                raise AdapterError(Reason.VALIDATION_ERROR, "the market has closed for it")
            case "down":
                raise AdapterError(Reason.BROKER_DOWN, "the exchange is away")
            case "error":
                raise RuntimeError("the paper is torn")
            case _:
                assert_never(step.kind)


def _filled(order: Order, part: Decimal) -> Execution:
    """In two halves if it can be, the second a tick worse: so the average has to be computed."""
    quantity = Decimal(repr(order.qty)) * part
    price = Decimal(repr(order.price)) if order.price is not None else _market(order.instrument)
    worse = _TICK if order.side == "BUY" else -_TICK
    now = datetime.now(UTC)
    halves = {price: quantity // 2, price + worse: quantity - quantity // 2}
    fills = tuple(Fill(float(px), float(qty), now) for px, qty in halves.items() if qty)
    return Execution(
        order_ref=f"P-{hashlib.sha256(order.idempotency_key.encode()).hexdigest()[:12]}",
        fills=fills,
        fee=float((price * quantity * FEE).quantize(Decimal("0.0001"))),
    )


def _market(instrument: str) -> Decimal:
    """A price that never moves."""
    return 100 + Decimal(hashlib.sha256(instrument.encode()).digest()[0])
