"""Destinations that workers have announced, and the queues that are known by name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from todoku.core.http_request import served_as
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

    def set_on_abort(self, destination: str, *, skip: bool) -> None:
        """Whether a dead letter of this destination blocks its lane (the default) or is skipped."""
        policy = "skip" if skip else "block"
        self._database.write("set_on_abort", lambda tx: tx.rows("set_on_abort", name=destination, on_abort=policy))

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
