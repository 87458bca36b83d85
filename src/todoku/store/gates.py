"""Gates: limits of one key, on how many deliveries of a destination with this key run at once or start a second.

A gate is a small row, as a lane is: a claim takes gates that are not full, and of each as many deliveries as its limit
allows, so deliveries behind a full gate are never read. Every change that ends or frees a delivery recounts its gate.
Locks are taken in this order (H11): deliveries, lanes, gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.message import Claimed
from todoku.store.database import Tx
from todoku.store.limits import Gated

_CALLS: Final = 1000
"""The number of gate calls (written by publishers) that one claim reads of each place."""

NOTHING: Final = [0]
"""An empty array has no type in PostgreSQL; gate 0 stands for none: a real gate has this hash once in 2^64."""


def soonest(gates: Iterable[tuple[str, str, float]]) -> tuple[tuple[str, str, float], ...]:
    """Places where a gate may let a delivery start, each once, with the seconds until its first gate is due."""
    first: dict[tuple[str, str], float] = {}
    for queue, destination, seconds in gates:
        first[queue, destination] = min(first.get((queue, destination), seconds), seconds)
    return tuple((*place, float(seconds)) for place, seconds in sorted(first.items()))


def claim(tx: Tx, worker: UUID, places: Sequence[Gated], gates: int, limit: int) -> list[Any]:
    """Takes gates that are not full, then of each as many due deliveries as its limit allows; gates take turns."""
    document = [msgspec.structs.asdict(place) for place in places]
    if called := tx.rows("heed_calls", places=document, most=_CALLS):
        open_gates(tx, called)
    taken = tx.rows("take_gates", worker=worker, places=document, gates=min(gates, limit))
    if not taken:
        return []
    each, more = divmod(limit, len(taken))
    mosts = {str(gate): min(each + (place < more), most) for place, (gate, _, most) in enumerate(taken) if most > 0}
    rows = tx.rows("claim_gate_rows", worker=worker, mosts=mosts, most=each + 1) if mosts else []
    rated = {gate for gate, rate, _ in taken if rate is not None}
    if spent := Counter(str(row[_GATE]) for row in rows if row[_GATE] in rated):
        tx.rows("spend_gates", spent=spent)
    _refresh_locked(tx, [gate for gate, *_ in taken])
    return rows


_GATE: Final = Claimed.__struct_fields__.index("gate")


def claim_suspect(tx: Tx, worker: UUID, places: Sequence[dict[str, str]]) -> list[Any]:
    """Takes one due row whose owner died; if it has a gate, only through a gate that is not full."""
    if rows := tx.rows("claim_suspect", worker=worker, places=places, gates=NOTHING):
        return rows
    wanted = sorted(gate for (gate,) in tx.rows("suspect_gates", places=places))
    if not wanted:
        return []
    free = [gate for gate, is_free in tx.rows("lock_gates", gates=wanted) if is_free]
    rows = tx.rows("claim_suspect", worker=worker, places=places, gates=free) if free else []
    if rows:
        tx.rows("spend_gates", spent={str(rows[0][_GATE]): 1})
        _refresh_locked(tx, [rows[0][_GATE]])
    return rows


def open_gates(tx: Tx, called: Iterable[tuple[int, str, str, str]]) -> None:
    """Creates the gates (gate, queue, destination, key) that are missing, and recounts all of them."""
    names = ("gate", "queue", "destination", "key")
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in called}
    tx.rows("open_gates", gates=[rows[gate] for gate in sorted(rows)])
    _refresh_locked(tx, sorted(rows))


def refresh(tx: Tx, gates: Iterable[int | None]) -> None:
    """Recounts the running deliveries of these gates, and when each is due, after deliveries ended or changed."""
    if ids := sorted({gate for gate in gates if gate is not None}):
        tx.rows("lock_gates", gates=ids)
        _refresh_locked(tx, ids)


def _refresh_locked(tx: Tx, gates: list[int]) -> None:
    """As `refresh`, with the locks held. A gate where nothing runs and nothing waits is removed."""
    if empty := [gate for gate, is_empty in tx.rows("refresh_gates", gates=gates) if is_empty]:
        tx.rows("drop_gates", gates=empty)
