"""Removing what succeeded before its time, because a person says so."""

from __future__ import annotations

from datetime import datetime

from todoku.store.database import Tx
from todoku.store.values import Cleared, Signed


def clear_history(
    tx: Tx,
    signed: Signed,
    topic: str | None,
    until: datetime | None,
    *,
    after: tuple[int, int],
    limit: int,
    dry_run: bool,
) -> Cleared:
    """One batch: history, attempts, results, and the messages nothing is left of. The ledger is left alone (I5)."""
    rows = tx.rows("history_chunk", topic=topic, until=until, after_seq=after[0], after_id=after[1], most=limit)
    position = (rows[-1][1], rows[-1][0]) if len(rows) == limit else None
    meant = [(id, seq) for id, seq, mine in rows if mine]
    if dry_run or not meant:
        return Cleared(len(meant), position)
    ids, seqs = [id for id, _ in meant], sorted({seq for _, seq in meant})
    gone = [id for (id,) in tx.rows("clear_history", ids=ids, seqs=seqs)]
    tx.rows("clear_attempts", ids=ids)
    tx.rows("clear_results", ids=ids)
    tx.rows("clear_messages", seqs=seqs)
    targets = [f"topic:{topic or '**'}"]
    tx.rows("audit", by=signed.by, why=signed.why, action=f"clear {len(gone)} succeeded", targets=targets)
    return Cleared(len(gone), position)
