"""Destinations that workers have announced, and the queues that are known by name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from todoku.core.http_request import served_as
from todoku.store import lanes
from todoku.store.database import Database, Tx


class Known(msgspec.Struct, frozen=True):
    """Queues that have a row, and destinations with the time a worker last announced each (None: never)."""

    queues: tuple[str, ...]
    destinations: dict[str, float | None]

    def seen(self, destination: str) -> float | None:
        """When a worker last announced this destination, or (of a host) the scheme that serves it; None: never."""
        names = (destination, served_as(destination))
        return max((at for name in names if (at := self.destinations.get(name)) is not None), default=None)


class DestinationStore:
    """The destinations of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def announce(self, destinations: Sequence[str]) -> None:
        """Records that a worker serves these destinations now."""
        self._database.write("announce", lambda tx: tx.rows("announce", destinations=list(destinations)))

    def set_on_abort(self, *destinations: str, skip: bool) -> None:
        """Whether dead letters of these destinations block their lanes (the default) or are skipped.

        Where that becomes "skipped", lanes that are blocked now go on.
        """
        policy = "skip" if skip else "block"

        def work(tx: Tx) -> None:
            changed = [name for (name,) in tx.rows("set_on_abort", names=sorted(destinations), on_abort=policy)]
            blocked = tx.rows("blocked_lanes", destinations=changed) if skip and changed else []
            lanes.refresh(tx, (lane for (lane,) in blocked), unpark=True)

        self._database.write("set_on_abort", work)

    def known(self) -> Known:
        """Every queue and destination that has a row."""
        return self._database.read(read_known, pinned=False)


def read_known(tx: Tx) -> Known:
    """As `DestinationStore.known`, in an open transaction."""
    rows = tx.rows("known")
    return Known(
        tuple(name for kind, name, _ in rows if kind == "queue"),
        {name: seen for kind, name, seen in rows if kind == "destination"},
    )
