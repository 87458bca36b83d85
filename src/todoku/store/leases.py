"""Leases: who owns what, for how long, and what happens when an owner is gone."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from todoku.store import gates
from todoku.store.database import Tx
from todoku.store.ending import Endings
from todoku.store.values import Held, Reclaimed, Signed

_AT_ONCE: Final = 5000
"""Orphans freed by one statement."""


def register(tx: Tx, worker: UUID, name: str, lease: float) -> None:
    """Begin a lease."""
    tx.rows("register", worker=worker, name=name, lease=lease)


def renew(tx: Tx, worker: UUID, lease: float) -> bool:
    """Extend a lease that has not ended."""
    return bool(tx.rows("renew", worker=worker, lease=lease))


def owned(tx: Tx, worker: UUID) -> list[Held]:
    """What the database says the worker owns."""
    rows = tx.rows("owned", worker=worker)
    return [Held(id, epoch, bool(asked), lane, worker, gate) for id, epoch, asked, lane, gate in rows]


def bury(tx: Tx, worker: UUID, *, lost: bool, max_lost: int, endings: Endings, waits: bool = True) -> Reclaimed:
    """End one lease, then free what it owned, known or not (I11); what others left behind is for reclaim to count."""
    buried = len(tx.rows("bury", worker=worker))
    if waits:
        tx.rows("lock_owned", worker=worker)
        tx.rows("lock_owned_lanes", worker=worker)
    return _free(tx, worker, buried=buried, lost=lost, max_lost=max_lost if lost else _NEVER, endings=endings)


def reclaim(tx: Tx, max_lost: int, signed: Signed | None = None, *, endings: Endings) -> Reclaimed:
    """End the leases that ran out, then free what has no live owner. In this order (H1), in one transaction."""
    buried = [id for (id,) in tx.rows("bury_expired")]
    done = _free(tx, None, buried=len(buried), lost=True, max_lost=max_lost, endings=endings)
    if signed is not None and (buried or done.freed or done.aborted):
        targets = [f"worker:{id}" for id in buried] or ["worker:none"]
        tx.rows("audit", by=signed.by, why=signed.why, action="release-expired", targets=targets)
    return done


_NEVER: Final = 1 << 30


def _free(tx: Tx, worker: UUID | None, *, buried: int, lost: bool, max_lost: int, endings: Endings) -> Reclaimed:
    freed = some = tx.rows("free_orphans", worker=worker, lost=int(lost), max_lost=max_lost, most=_AT_ONCE)
    while len(some) == _AT_ONCE:
        some = tx.rows("free_orphans", worker=worker, lost=int(lost), max_lost=max_lost, most=_AT_ONCE)
        freed = freed + some
    tx.rows("free_lanes", worker=worker, lost=int(lost))
    if lost and freed:
        names = ("delivery_id", "epoch", "number", "replay")
        tx.rows(
            "record_lost",
            rows=[dict(zip(names, (id, *rest), strict=True)) for id, _, *rest, _, _ in freed],
        )
    if lanes := sorted({lane for _, status, *_, lane, _ in freed if status == "aborted" and lane is not None}):
        tx.rows("park_lanes", lanes=lanes)
    gates.refresh(tx, (gate for *_, gate in freed))
    aborted = [id for id, status, *_ in freed if status == "aborted"]
    endings.aborted(tx, aborted)
    return Reclaimed(workers=buried, freed=len(freed) - len(aborted), aborted=len(aborted))
