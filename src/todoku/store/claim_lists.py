"""Claims by list: one row names the deliveries that a worker has claimed, and the deliveries stay as they are.

An update of each delivery is most of what a claim costs PostgreSQL. A worker that drains a backlog saves it: what it
succeeds with is deleted anyway. Whatever else happens to a listed delivery first writes its claim out: from then on it
is a claim as any other, with the same token (decision 52). On SQLite no claim is a list.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.message import Claimed
from todoku.store.database import Slice, Tx, slice_parameters

_LIST_OF: Final[Callable[[Claimed], Any]] = attrgetter("claim_list")


class Listing(msgspec.Struct, frozen=True):
    """Which deliveries may be listed: those of these destinations, if there are at least `fewest`."""

    destinations: tuple[str, ...]
    fewest: int


def claim(tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int, listing: Listing) -> list[tuple[Any, ...]]:
    """Claims what is due, by a list as far as that is allowed. Returns rows for `build`, in no order."""
    return tx.rows(
        "claim_list", worker=worker, listable=list(listing.destinations), fewest=listing.fewest, most=limit,
        **slice_parameters(slices),
    )  # fmt: skip


def build(rows: Iterable[tuple[Any, ...]], slices: Sequence[Slice], worker: UUID) -> list[Claimed]:
    """Builds claims from rows of `claim`, larger priorities first, each priority in time order."""
    places = {number: (at.destination, at.queue, at.priority) for number, at in enumerate(slices, 1)}
    claims = _build(rows, places, worker, in_lanes=False)
    claims.sort(key=_by_time if len(slices) == 1 else _by_priority)
    return claims


def build_in_lanes(
    rows: Iterable[tuple[Any, ...]], lanes: Mapping[int, tuple[str, str]], worker: UUID
) -> list[Claimed]:
    """As `build`, from rows in lanes, which are given with their destination and queue; in the order of their ids."""
    claims = _build(rows, {lane: (*at, 0) for lane, at in lanes.items()}, worker, in_lanes=True)
    claims.sort(key=_in_lane)
    return claims


def _build(
    rows: Iterable[tuple[Any, ...]], places: Mapping[int, tuple[str, str, int]], worker: UUID, *, in_lanes: bool
) -> list[Claimed]:
    """The database sends nothing that is known of a listed delivery; its place or lane says the rest."""
    claims = []
    for row in rows:
        (
            number, place, id, message_seq, message_id, topic, key, payload, payload_bytes, content_type, headers,
            max_attempts, next_run_at, created_at, timeout, key_hash, digest, effect, priority,
            epoch, destination, queue, attempt, snoozes, replay_count, expires_at, lost, gate,
        ) = row  # fmt: skip
        if number is not None:
            destination, queue, usual = places[place]
            epoch, attempt, snoozes, replay_count, lost = 0, 1, 0, 0, 0
            if priority is None:
                priority = usual
        effect_state, effect_digest = effect or (None, None)
        claims.append(Claimed(
            id, epoch, message_seq, message_id, topic, key, payload, payload_bytes, content_type, headers, destination,
            queue, priority, place if in_lanes else None, gate, attempt, max_attempts, lost, snoozes, replay_count,
            next_run_at, created_at, expires_at, timeout, key_hash, digest, effect_state, effect_digest, worker, None,
            number,
        ))  # fmt: skip
    return claims


def _by_time(claimed: Claimed) -> tuple[float, int]:
    return claimed.next_run_at, claimed.id


def _by_priority(claimed: Claimed) -> tuple[int, float, int]:
    return -claimed.priority, claimed.next_run_at, claimed.id


def _in_lane(claimed: Claimed) -> tuple[int, int]:
    return claimed.lane or 0, claimed.id


def write_out(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Makes locked deliveries say by themselves what their lists say. Returns those that were listed."""
    return {id for (id,) in tx.rows("write_out_ids", ids=list(ids))} if ids else set()


class OpenLists:
    """How much of each list of this process has not ended yet. A list that has ended is removed with a settle."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._over: set[int] = set()
        self._lock = threading.Lock()

    def add(self, claims: Iterable[Claimed]) -> None:
        """Counts what was claimed by list."""
        with self._lock:
            for number, listed in Counter(map(_LIST_OF, claims)).items():
                if number is not None:
                    self._open[number] = self._open.get(number, 0) + listed

    def end(self, claims: Iterable[Claimed]) -> None:
        """Counts claims that were settled, given back or lost."""
        with self._lock:
            for number, ended in Counter(map(_LIST_OF, claims)).items():
                if number in self._open:
                    self._open[number] -= ended
                    if self._open[number] <= 0:
                        del self._open[number]
                        self._over.add(number)

    @property
    def over(self) -> list[int]:
        """The lists that can be removed."""
        with self._lock:
            return sorted(self._over)

    def removed(self, lists: Iterable[int]) -> None:
        """Forgets lists that were removed."""
        with self._lock:
            self._over.difference_update(lists)
