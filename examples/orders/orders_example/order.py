"""The order contract: what may be asked for, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

TOPIC: Final = "order.requested"
ORDERS: Final = "orders"
"""The destination of orders, and the scope of their keys: that both have one name lets a replay reopen the key."""

Side = Literal["BUY", "SELL"]
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
# \Z and not $, which would let a line break pass.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
Instrument = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9._-]{3,20}\Z")]
Key = Annotated[str, msgspec.Meta(pattern=r"^[!#-\[\]-~]{8,64}\Z")]
"""8 to 64 visible ASCII characters that need no escape in a header."""
Tag = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,32}\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Refused(Exception):
    """An order that cannot be accepted: which field, and what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RiskConstraints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the sender will bear. More than `max_notional` is refused; slippage is told, as it has happened by then."""

    max_notional: Amount | None = None
    max_slippage: Amount | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order as it is asked for, stored and sent. `price` None: at the market's."""

    idempotency_key: Key
    order_id: Name
    instrument: Instrument
    side: Side
    qty: Amount
    price: Amount | None = None
    time_in_force: Literal["IOC", "FOK", "GTC"] = "IOC"
    tags: Annotated[tuple[Tag, ...], msgspec.Meta(max_length=8)] = ()
    risk_constraints: RiskConstraints | None = None
    requested_at: Moment
    trace_id: Name


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which order an answer is about: every answer to an order has these."""

    order_id: str
    instrument: str
    side: Side
    requested_at: datetime
    trace_id: str
    idempotency_key: str


class Accepted(Identity, frozen=True, kw_only=True):
    """What is answered until there is a result."""

    status: Literal["accepted"] = "accepted"


def read_order(body: bytes, steps: Mapping[str, Decimal]) -> Order:
    """The order in a request's body. Refused: it is none, or not one that may be traded."""
    try:
        order = msgspec.json.decode(body, type=Order)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise Refused(where.strip(".`") or _unknown(what), what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("body", f"is no JSON: {error}") from None
    _check(order, steps)
    # The same moment in another zone is the same order.
    return msgspec.structs.replace(order, requested_at=order.requested_at.astimezone(UTC))


def accepted(order: Order) -> Accepted:
    """The answer to an order whose result is not there yet."""
    return Accepted(**{name: getattr(order, name) for name in Identity.__struct_fields__})


def _check(order: Order, steps: Mapping[str, Decimal]) -> None:
    """What the broker's market says about it."""
    step = steps.get(order.instrument)
    if step is None:
        raise Refused("instrument", "is not traded here")
    if Decimal(repr(order.qty)) % step:
        raise Refused("qty", f"does not fit the lot step {step}")
    risk = order.risk_constraints
    if risk is not None and risk.max_notional is not None and (order.price or 0) * order.qty > risk.max_notional:
        raise Refused("risk_constraints.max_notional", "is less than price × qty")


def _unknown(said: str) -> str:
    """msgspec names a field that is missing or too many in its sentence, not in its path."""
    return said.partition("field `")[2].partition("`")[0] or "body"
