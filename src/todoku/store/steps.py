"""Steps on a transaction of our own: what `join` does on a caller's connection."""

from __future__ import annotations

from typing import TypeVar

from todoku.store.database import Tx
from todoku.store.port import Steps

T = TypeVar("T")


def taken(tx: Tx, steps: Steps[T]) -> T:
    """Take all steps in the transaction, and return what they come to."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(tx.statement(statement))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
