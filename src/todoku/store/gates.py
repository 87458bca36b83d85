"""Gates: the deliveries of one destination that share a key, of which only so many may run at once or start a second.

A gate is a small row, as a lane is: a claim takes gates that are not full and of each what its limit leaves, so what a
full gate holds back is never looked at. Everything that ends or frees a delivery with a gate counts it anew, as its
last locks (H11): deliveries, lanes, gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.message import Claimed
from todoku.store.database import Tx
from todoku.store.values import Gated

_CALLS: Final = 1000
"""Calls heeded by one claim, of each place."""

NOTHING: Final = [0]
"""An empty array has no type to PostgreSQL; gate 0 is as good as none, being one hash in 2^64."""


def waiting(tx: Tx, destinations: Sequence[str] | None) -> tuple[tuple[str, str, float], ...]:
    """Where a key may start something, each place once, with the seconds until the first is to be looked at."""
    soonest: dict[tuple[str, str], float] = {}
    for queue, destination, seconds in tx.rows("waiting_gates", destinations=destinations):
        soonest[queue, destination] = min(soonest.get((queue, destination), seconds), seconds)
    return tuple((*place, float(seconds)) for place, seconds in sorted(soonest.items()))


def claim(tx: Tx, worker: UUID, places: Sequence[Gated], gates: int, limit: int) -> list[Any]:
    """Take gates that are not full, then of each as many due rows as its limit leaves; gates take turns."""
    document = [msgspec.structs.asdict(place) for place in places]
    if called := tx.rows("heed_calls", places=document, most=_CALLS):
        opened(tx, called)
    taken = tx.rows("take_gates", worker=worker, places=document, gates=min(gates, limit))
    if not taken:
        return []
    each, more = divmod(limit, len(taken))
    mosts = {str(gate): min(each + (place < more), most) for place, (gate, _, most) in enumerate(taken) if most > 0}
    rows = tx.rows("claim_gate_rows", worker=worker, mosts=mosts, most=each + 1) if mosts else []
    rated = {gate for gate, rate, _ in taken if rate is not None}
    if spent := Counter(str(row[_GATE]) for row in rows if row[_GATE] in rated):
        tx.rows("spend_gates", spent=spent)
    _refreshed(tx, [gate for gate, *_ in taken])
    return rows


_GATE: Final = Claimed.__struct_fields__.index("gate")


def claim_suspect(tx: Tx, worker: UUID, places: Sequence[dict[str, str]]) -> list[Any]:
    """One due row whose owner died; if it has a gate, one that is not full."""
    if rows := tx.rows("claim_suspect", worker=worker, places=places, gates=NOTHING):
        return rows
    wanted = sorted(gate for (gate,) in tx.rows("suspect_gates", places=places))
    if not wanted:
        return []
    free = [gate for gate, is_free in tx.rows("lock_gates", gates=wanted) if is_free]
    rows = tx.rows("claim_suspect", worker=worker, places=places, gates=free) if free else []
    if rows:
        tx.rows("spend_gates", spent={str(rows[0][_GATE]): 1})
        _refreshed(tx, [rows[0][_GATE]])
    return rows


def opened(tx: Tx, called: Iterable[tuple[int, str, str, str]]) -> None:
    """Make the gates (gate, queue, destination, key) that are not there, and look at what waits in all of them."""
    names = ("gate", "queue", "destination", "key")
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in called}
    tx.rows("open_gates", gates=[rows[gate] for gate in sorted(rows)])
    _refreshed(tx, sorted(rows))


def refresh(tx: Tx, gates: Iterable[int | None]) -> None:
    """Deliveries with these gates ended or changed: count what runs, and say when to look again."""
    if ids := sorted({gate for gate in gates if gate is not None}):
        tx.rows("lock_gates", gates=ids)
        _refreshed(tx, ids)


def _refreshed(tx: Tx, gates: list[int]) -> None:
    """Of gates whose locks are held; one where nothing runs and nothing waits is removed."""
    if empty := [gate for gate, is_empty in tx.rows("refresh_gates", gates=gates) if is_empty]:
        tx.rows("drop_gates", gates=empty)
