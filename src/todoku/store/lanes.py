"""Lanes: the deliveries of one destination and key, which run in order and one at a time (I10).

A lane has a row. A claim takes free lanes and then the first rows of each; every change to a row of a lane
ends by looking at the head of the lane again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from todoku.core.decision import Settlement
from todoku.core.identity import destination_lock
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.store.database import Tx
from todoku.store.limits import place_documents

REMOVED: Final = frozenset({"CANCELLED", "EXPIRED", "BY_HAND", "UNKNOWN_DESTINATION"})
"""Reasons of dead letters that do not block their lane: an operator or their expiry has removed them."""

_LANE: Final = Claimed.__struct_fields__.index("lane")
_NOTHING: Final = [0]
"""An empty array has no type in PostgreSQL; lane 0 stands for none, being one hash in 2^64."""


def claim(
    tx: Tx, worker: UUID, places: Sequence[tuple[str, str]], lanes: int, limit: int, *, heads_only: bool = False
) -> list[Any]:
    """Takes lanes, then the first rows of each, or only its head. Lanes with nothing to run are given back at once."""
    taken = dict(tx.rows("take_lanes", worker=worker, places=place_documents(places), lanes=min(lanes, limit)))
    if not taken:
        return []
    each = 1 if heads_only else max(1, limit // len(taken))
    mosts = {str(lane): 1 if failures else each for lane, failures in taken.items()}
    rows = tx.rows("claim_lane_rows", worker=worker, mosts=mosts, most=each)
    if idle := taken.keys() - {row[_LANE] for row in rows}:
        settle(tx, worker, sorted(idle), ())
    return sorted(rows, key=lambda row: (row[_LANE], row[0]))


def settle(tx: Tx, worker: UUID, lanes: Sequence[int], settled: Sequence[tuple[Claimed, Settlement]]) -> None:
    """Gives back the lanes with nothing in flight, and drops the empty ones (unless a publisher is writing to them)."""
    by_status: dict[Status, set[int]] = {status: set() for status in Status}
    for claimed, settlement in settled:
        if claimed.lane is not None and not (settlement.status is Status.ABORTED and settlement.reason in REMOVED):
            by_status[settlement.status].add(claimed.lane)
    rows = tx.rows(
        "settle_lanes",
        worker=worker,
        lanes=lanes,
        failing=sorted(by_status[Status.FAILED]) or _NOTHING,
        succeeding=sorted(by_status[Status.SUCCEEDED]) or _NOTHING,
        aborting=sorted(by_status[Status.ABORTED]) or _NOTHING,
    )
    empty = {str(lane): str(destination_lock(destination)) for lane, destination, is_empty in rows if is_empty}
    if empty and (locked := [row[0] for row in tx.rows("try_lock_lanes", locks=empty)]):
        tx.rows("drop_empty_lanes", lanes=locked)


def lock(tx: Tx, lanes: Iterable[int | None]) -> list[int]:
    """Locks lanes in order (H11). Returns them."""
    if locked := sorted({lane for lane in lanes if lane is not None}):
        tx.rows("lock_lanes", lanes=locked)
    return locked
