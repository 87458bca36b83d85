"""Exercise 2: the types OutboxStatus and OutboxRecord<TPayload>. They are in `shop_example/records.py`."""

from __future__ import annotations

import msgspec

import todoku
from shop_example.events import OrderCreated
from shop_example.exercises.opening import USER, opened
from shop_example.records import OutboxRecord, read_records


def typed_records(database: str) -> list[str]:
    """A row becomes an OutboxRecord[OrderCreated]: the payload is an OrderCreated, and its amount an int."""
    with opened(database, todoku.log()) as shop:
        shop.create_order(USER, 4200)
        records: list[OutboxRecord[OrderCreated]] = read_records(shop.outbox(), OrderCreated)
    (record,) = records
    return [
        f"{type(record.payload).__name__}.amount = {record.payload.amount}",
        f"status = {record.status}, attempts = {record.attempts}",
        f"as JSON: {', '.join(msgspec.to_builtins(record))}",
    ]
