"""Leases: who owns what, for how long, and what happens when an owner is gone."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from todoku.store.database import Tx
from todoku.store.values import Held, Reclaimed

_AT_ONCE: Final = 5000
"""Orphans freed by one statement; the rest is found by the next reclaim."""


def register(tx: Tx, worker: UUID, name: str, lease: float) -> None:
    """Begin a lease."""
    tx.rows("register", worker=worker, name=name, lease=lease)


def renew(tx: Tx, worker: UUID, lease: float, state: str) -> bool:
    """Extend a lease that has not ended."""
    return bool(tx.rows("renew", worker=worker, lease=lease, state=state))


def owned(tx: Tx, worker: UUID) -> list[Held]:
    """What the database says the worker owns."""
    return [Held(id, epoch, bool(asked)) for id, epoch, asked in tx.rows("owned", worker=worker)]


def bury(tx: Tx, worker: UUID, *, lost: bool) -> Reclaimed:
    """End one lease, then free what it owned, known or not (I11)."""
    return _free(tx, buried=len(tx.rows("bury", worker=worker)), lost=lost, max_lost=_NEVER if not lost else 3)


def reclaim(tx: Tx, max_lost: int) -> Reclaimed:
    """End the leases that ran out, then free what has no live owner. In this order (H1), in one transaction."""
    return _free(tx, buried=len(tx.rows("bury_expired")), lost=True, max_lost=max_lost)


_NEVER: Final = 1 << 30


def _free(tx: Tx, *, buried: int, lost: bool, max_lost: int) -> Reclaimed:
    freed = tx.rows("free_orphans", lost=int(lost), max_lost=max_lost, most=_AT_ONCE)
    tx.rows("free_lanes", lost=int(lost))
    if lost and freed:
        names = ("delivery_id", "epoch", "number", "replay")
        tx.rows(
            "record_lost",
            rows=[dict(zip(names, (id, epoch, number, replay), strict=True)) for id, _, epoch, number, replay in freed],
        )
    aborted = sum(status == "aborted" for _, status, *_ in freed)
    return Reclaimed(workers=buried, freed=len(freed) - aborted, aborted=aborted)
