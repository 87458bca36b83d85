"""The result contract: what came of an order."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from orders_example.broker import Execution, Fill
from orders_example.order import Identity, Order, Side
from orders_example.reasons import Reason

BY_HAND: Final = "SETTLED_BY_HAND"
PARTIAL: Final = "PARTIAL_FILL"
SLIPPAGE: Final = "MAX_SLIPPAGE_EXCEEDED"
DIGESTED: Final = (
    "status", "order_id", "instrument", "side", "executed_qty", "avg_price", "fills", "reason_code",
)  # fmt: skip
"""What two results of one order must agree in; times and latencies may differ."""


class Broker(msgspec.Struct, frozen=True):
    """Who executed it, and under which name."""

    name: str
    order_ref: str | None = None


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds: from the commit to the attempt, of the broker's answer, and from the commit to the result."""

    queue: int = 0
    broker_rtt: int = 0
    total: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger answers to a repeat. `cost` is the broker's fee; `slippage` is per unit, and more is worse."""

    status: Literal["ok", "error"]
    order_id: str
    instrument: str
    side: Side
    requested_at: datetime
    completed_at: datetime
    trace_id: str
    idempotency_key: str
    fills: tuple[Fill, ...] = ()
    executed_qty: float = 0
    avg_price: float | None = None
    cost: float = 0
    slippage: float | None = None
    broker: Broker
    latency_ms: Latency = Latency()
    reason_code: Reason | None = None
    warnings: tuple[str, ...] = ()
    result_digest: str = ""


def filled(order: Order, execution: Execution, broker: str, at: datetime, latency: Latency) -> Result:
    """The result of an order that a broker executed, wholly or in part."""
    quantity = sum((_exact(fill.qty) for fill in execution.fills), Decimal())
    spent = sum((_exact(fill.px) * _exact(fill.qty) for fill in execution.fills), Decimal())
    average = float(round(spent / quantity, 8)) if quantity else None
    slippage = _slippage(order, average)
    limit = order.risk_constraints.max_slippage if order.risk_constraints else None
    warnings = {
        PARTIAL: quantity < _exact(order.qty),
        SLIPPAGE: limit is not None and slippage is not None and slippage > limit,
    }
    return _digested(
        Result(
            status="ok",
            **_of(order, at),
            fills=execution.fills,
            executed_qty=float(quantity),
            avg_price=average,
            cost=execution.fee,
            slippage=slippage,
            broker=Broker(broker, execution.order_ref),
            latency_ms=latency,
            warnings=tuple(name for name, so in warnings.items() if so),
        )
    )


def refused(order: Order | Identity, reason: Reason, broker: str, at: datetime, latency: Latency) -> Result:
    """The result of an order that nobody executed."""
    said: dict[str, Any] = {"broker": Broker(broker), "latency_ms": latency, "reason_code": reason}
    return _digested(Result(status="error", **_of(order, at), **said))


def settled(order: Identity, broker: str, at: datetime) -> Result:
    """The result of an order that a person settled as succeeded, and said no more about."""
    return _digested(Result(status="ok", **_of(order, at), broker=Broker(broker), warnings=(BY_HAND,)))


def result_digest(result: Result) -> str:
    """`sha256:…` of the canonical JSON of what two results of one order must agree in."""
    told = msgspec.to_builtins({name: getattr(result, name) for name in DIGESTED})
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _digested(result: Result) -> Result:
    return msgspec.structs.replace(result, result_digest=result_digest(result))


def _of(order: Order | Identity, at: datetime) -> dict[str, Any]:
    known = {name: getattr(order, name) for name in Identity.__struct_fields__}
    return known | {"completed_at": max(at, order.requested_at)}  # the sender's clock may be ahead of ours


def _slippage(order: Order, average: float | None) -> float | None:
    """How much worse than asked for each unit was; None: nothing was asked for."""
    if average is None or order.price is None:
        return None
    worse = _exact(average) - _exact(order.price)
    return float(worse if order.side == "BUY" else -worse)


def _exact(value: float) -> Decimal:
    return Decimal(repr(value))
