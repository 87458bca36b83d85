"""Lanes: the deliveries of one destination and key, which run in order and one at a time (I10).

A lane has a row. A claim takes free lanes and then the first rows of each; every change to a row of a lane
ends by looking at the head of the lane again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from todoku.core.decision import Settlement
from todoku.core.identity import destination_lock
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.store.claim_lists import Listing, build_in_lanes
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
    taken = _take(tx, worker, places, min(lanes, limit))
    each = 1 if heads_only else _share(limit, taken)
    rows = tx.rows("claim_lane_rows", worker=worker, mosts=_mosts(taken, each), most=each) if taken else []
    _give_back(tx, worker, taken.keys() - {row[_LANE] for row in rows})
    return sorted(rows, key=_IN_LANE)


def claim_list(
    tx: Tx, worker: UUID, places: Sequence[tuple[str, str]], lanes: int, limit: int, listing: Listing
) -> list[Claimed]:
    """As `claim`, by a list as far as that is allowed (PostgreSQL)."""
    taken = _take(tx, worker, places, min(lanes, limit))
    mosts = _mosts(taken, _share(limit, taken))
    named = list(listing.destinations)
    rows = (
        tx.rows("claim_lane_list", worker=worker, mosts=mosts, listable=named, fewest=listing.fewest) if taken else []
    )
    claims = build_in_lanes(rows, {id: (lane.destination, lane.queue) for id, lane in taken.items()}, worker)
    _give_back(tx, worker, taken.keys() - {claimed.lane for claimed in claims})
    return claims


class _Taken(NamedTuple):
    """A lane that was taken."""

    failures: int
    queue: str
    destination: str


def _take(tx: Tx, worker: UUID, places: Sequence[tuple[str, str]], most: int) -> dict[int, _Taken]:
    rows = tx.rows("take_lanes", worker=worker, places=place_documents(places), lanes=most)
    return {id: _Taken(*rest) for id, *rest in sorted(rows)}


def _share(limit: int, taken: Mapping[int, _Taken]) -> int:
    return max(1, limit // max(1, len(taken)))


def _mosts(taken: Mapping[int, _Taken], each: int) -> dict[str, int]:
    """How many rows of each lane: of one that failed only its head, which may be a suspect (H6)."""
    return {str(id): 1 if lane.failures else each for id, lane in taken.items()}


def _give_back(tx: Tx, worker: UUID, idle: Collection[int]) -> None:
    if idle:
        settle(tx, worker, sorted(idle), ())


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
