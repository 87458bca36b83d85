"""Lanes: the deliveries of one destination and key, which run in order and one at a time (I10).

A lane has a row. A claim takes free lanes and then the first rows of each; every change to a row of a lane
ends by looking at the head of the lane again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
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
_IN_LANE: Final = itemgetter(_LANE, 0)
_NOTHING: Final = [0]
"""An empty array has no type in PostgreSQL; lane 0 stands for none, being one hash in 2^64."""


def claim(
    tx: Tx, worker: UUID, places: Sequence[tuple[str, str]], lanes: int, limit: int, *, heads_only: bool = False
) -> list[Any]:
    """Takes lanes, then the first rows of each, or only its head. Lanes with nothing to run are given back at once."""
    taken = dict(sorted(tx.rows("take_lanes", worker=worker, places=place_documents(places), lanes=min(lanes, limit))))
    if not taken:
        return []
    each = 1 if heads_only else max(1, limit // len(taken))
    mosts = {str(lane): 1 if failures else each for lane, failures in taken.items()}
    rows = tx.rows("claim_lane_rows", worker=worker, mosts=mosts, most=each)
    if idle := taken.keys() - {row[_LANE] for row in rows}:
        settle(tx, worker, sorted(idle), ())
    return sorted(rows, key=_IN_LANE)


def settle(tx: Tx, worker: UUID, lanes: Sequence[int], settled: Sequence[tuple[Claimed, Settlement]]) -> None:
    """Gives back the lanes with nothing in flight. Drops the empty ones instead, unless a publisher is writing to them.

    The caller has locked the rows of the lanes, so no step in between is ever seen.
    """
    values = {
        "failing": _lanes_of(settled, Status.FAILED),
        "succeeding": _lanes_of(settled, Status.SUCCEEDED),
        "aborting": _lanes_of([pair for pair in settled if pair[1].reason not in REMOVED], Status.ABORTED),
    }
    empty = dict(tx.rows("settle_lanes", worker=worker, lanes=lanes, drop=True, **values))
    if kept := sorted(empty.keys() - _drop(tx, worker, empty)):
        tx.rows("settle_lanes", worker=worker, lanes=kept, drop=False, **values)


def _lanes_of(settled: Sequence[tuple[Claimed, Settlement]], status: Status) -> list[int]:
    lanes = {claim.lane for claim, settlement in settled if settlement.status is status}
    return sorted(lane for lane in lanes if lane is not None) or _NOTHING


def _drop(tx: Tx, worker: UUID, empty: Mapping[int, str]) -> set[int]:
    """Drops empty lanes, given with their destinations, unless a publisher is writing to them. Returns the dropped."""
    if not empty:
        return set()
    locks = {name: str(destination_lock(name)) for name in set(empty.values())}
    wanted = {str(lane): locks[name] for lane, name in empty.items()}
    locked = [row[0] for row in tx.rows("try_lock_lanes", locks=wanted)]
    return {row[0] for row in tx.rows("drop_empty_lanes", worker=worker, lanes=locked)} if locked else set()


def lock(tx: Tx, lanes: Iterable[int | None]) -> list[int]:
    """Locks lanes in order (H11). Returns them."""
    if locked := sorted({lane for lane in lanes if lane is not None}):
        tx.rows("lock_lanes", lanes=locked)
    return locked


def refresh(tx: Tx, lanes: Iterable[int | None], *, unpark: bool = False) -> None:
    """Looks at the heads of these lanes again, after deliveries of them changed. `unpark`: no dead letter blocks them.

    The caller has locked those deliveries. The heads are read once the lanes are locked: what others changed is seen.
    """
    if locked := lock(tx, lanes):
        tx.rows("refresh_lanes", lanes=locked, unpark=unpark)
