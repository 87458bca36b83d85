"""A payment service, pretended: it has a file of its own, and is as far from the orders as one on the internet.

It refuses to do a thing twice: a charge with a key that it knows is the charge of before, as services of this kind do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

FILE = "PAYMENTS_FILE"
TABLE = "create table if not exists payment (key text primary key, amount integer, state text, calls integer)"


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ.get(FILE, "payment-service.db"), timeout=10)) as file, file:
        file.execute(
            "create table if not exists payment (key text primary key, amount integer, state text, calls integer)"
        )
        yield file


def charge(order: int, amount: int, key: str) -> str:
    """Charges an order. Returns the receipt."""
    with _opened() as file:
        file.execute(
            "insert into payment values (?, ?, 'charged', 1) on conflict (key) do update set calls = calls + 1",
            (key, amount),
        )
    return f"receipt {order}"


def refund(key: str, receipt: str | None) -> None:
    """Pays back. Without a receipt it is not known whether the charge arrived: the key finds it, if it did."""
    state = "refunded" if receipt else "refunded without a receipt"
    with _opened() as file:
        file.execute("update payment set state = ? where key = ?", (state, key))


def payments() -> list[tuple[str, int, str, int]]:
    """Everything the service knows: key, amount, state, and how often it was asked to charge it."""
    with _opened() as file:
        return file.execute("select key, amount, state, calls from payment order by rowid").fetchall()
