"""Exercise 1: what is stored in the outbox?

| question | answer |
|---|---|
| which event types | `OrderCreated`, `PaymentConfirmed`: what happened, in the past tense |
| which aggregate | the order, for both: so "paid" can never overtake "created" |
| what payload | ids, the amount, the time: what a consumer cannot do without, and nothing personal |
| which states | PENDING, PROCESSING, PUBLISHED, FAILED; who waits for a retry is PENDING with a later next_attempt_at |
"""

from __future__ import annotations

import todoku
from shop_example.exercises.opening import USER, opened
from shop_example.records import OutboxStatus, read_records


def event_types(database: str) -> list[str]:
    """An order is made and paid: two events of one aggregate, relayed in their order."""
    with opened(database, todoku.log()) as shop:
        order = shop.create_order(USER, 4200)
        shop.confirm_payment(order)
        shop.box.drain()
        records = read_records(shop.outbox(), dict[str, object])
    return [
        *(f"{record.event_type}: {', '.join(record.payload)}" for record in records),
        f"of one aggregate: {len({record.aggregate_id for record in records}) == 1}",
        f"states: {', '.join(OutboxStatus)}",
    ]
