"""Claims by list: one row names the deliveries that a worker has claimed, and the deliveries stay as they are.

An update of each delivery is most of what a claim costs PostgreSQL. A worker that drains a backlog saves it: what it
succeeds with is deleted anyway. Whatever else happens to a listed delivery first writes its claim out: from then on it
is a claim as any other, with the same token (decision 52). On SQLite no claim is a list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from todoku.core.message import Claimed
from todoku.store.database import Slice, Tx, slice_parameters
from todoku.store.leases import Held


class Listing(msgspec.Struct, frozen=True):
    """Which deliveries may be listed: those of these destinations, if there are at least `fewest`."""

    destinations: tuple[str, ...]
    fewest: int


def claim(tx: Tx, worker: UUID, slices: Sequence[Slice], limit: int, listing: Listing) -> list[Any]:
    """Claims what is due, by a list as far as that is allowed. The list is the first column."""
    return tx.rows(
        "claim_list", worker=worker, listable=list(listing.destinations), fewest=listing.fewest, most=limit,
        **slice_parameters(slices),
    )  # fmt: skip


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
            for claimed in claims:
                if claimed.claim_list is not None:
                    self._open[claimed.claim_list] = self._open.get(claimed.claim_list, 0) + 1

    def end(self, claims: Iterable[Claimed | Held]) -> None:
        """Counts claims that were settled, given back or lost."""
        with self._lock:
            for claimed in claims:
                if isinstance(claimed, Claimed) and (number := claimed.claim_list) in self._open:
                    assert number is not None  # noqa: S101 - the keys are numbers
                    self._open[number] -= 1
                    if not self._open[number]:
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
