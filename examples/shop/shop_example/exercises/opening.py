"""A shop for an exercise, on an empty database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from shop_example.orders import Shop

USER = UUID("11111111-1111-4111-8111-111111111111")


@contextmanager
def opened(database: str, to: Any) -> Iterator[Shop]:
    """A shop that is prepared, and closed at the end."""
    shop = Shop(database, to)
    try:
        shop.prepare()
        yield shop
    finally:
        shop.close()
