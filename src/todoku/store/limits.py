"""Limits of queues and destinations, exact over all workers: a claim counts what is in flight under their locks.

A place without a limit costs nothing: it is claimed as ever. What has one is claimed place after place, each for what
its limits leave. A limit that leaves nothing is only read, so a full queue makes nobody wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from todoku.store.database import Tx
from todoku.store.values import Counted

UNLIMITED: Final = 1 << 30


class Place(Protocol):
    """A part of what waits."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def destination(self) -> str:
        """Its destination."""


class Spot(NamedTuple):
    """A queue and a destination."""

    queue: str
    destination: str


def spots(places: Iterable[tuple[str, str]]) -> list[Spot]:
    """Pairs by their names."""
    return [Spot(*place) for place in places]


P = TypeVar("P", bound=Place)
Take = Callable[[Sequence[P], int], list[Any]]
"""Claims of some places at most so many rows."""


def by_place(tx: Tx, places: Sequence[P], counted: Counted, limit: int, take: Take[P]) -> list[Any]:
    """What `take` claims of the places, in their order, at most `limit` and never more than the limits leave."""
    if not counted:
        return take(places, limit)
    rooms = Rooms(tx, counted)
    rows: list[Any] = []
    for is_counted, some in groupby(places, key=lambda place: counted.has(place.queue, place.destination)):
        for part in [[place] for place in some] if is_counted else [list(some)]:
            most = min(limit - len(rows), rooms.left(part[0])) if is_counted else limit - len(rows)
            if most > 0:
                found = take(part, most)
                rows += found
                if is_counted:
                    rooms.used(part[0], len(found))
    rooms.spend()
    return rows


class Rooms:
    """How many more may start, as this transaction counted it; the locks of what has room are held until its end."""

    def __init__(self, tx: Tx, counted: Counted) -> None:
        self._tx = tx
        self._most = counted.most
        self._used: Counter[tuple[str, str]] = Counter()
        self._rooms: dict[tuple[str, str], int] = {}
        self._rated: set[tuple[str, str]] = set()
        found = self._look(counted.queues, counted.destinations)
        open_ones = {name for name in found if found[name] > 0}
        if open_ones and self._most > 0:
            queues = frozenset(name for kind, name in open_ones if kind == "queue")
            destinations = frozenset(name for kind, name in open_ones if kind == "destination")
            tx.rows("lock_limits", queues=sorted(queues), destinations=sorted(destinations))
            found |= self._look(queues, destinations)
        self._rooms = found

    def _look(self, queues: frozenset[str], destinations: frozenset[str]) -> dict[tuple[str, str], int]:
        rooms: dict[tuple[str, str], int] = {}
        rows = self._tx.rows("rooms", queues=sorted(queues), destinations=sorted(destinations))
        for kind, name, allowed, free in rows:
            rooms[kind, name] = min(room for room in (allowed, free, UNLIMITED) if room is not None)
            if allowed is not None:
                self._rated.add((kind, name))
        return rooms

    def left(self, place: Place) -> int:
        """How many more of this place."""
        return min(self._most, *(self._rooms.get(name, UNLIMITED) for name in _names(place)))

    def used(self, place: Place, number: int) -> None:
        """So many of it were claimed."""
        self._most -= number
        for name in _names(place):
            self._used[name] += number
            if name in self._rooms:
                self._rooms[name] -= number

    def spend(self) -> None:
        """Write down what counts against rates."""
        spent = {name: number for name, number in self._used.items() if number and name in self._rated}
        if spent:
            self._tx.rows(
                "spend_rates",
                queues={name: number for (kind, name), number in spent.items() if kind == "queue"},
                destinations={name: number for (kind, name), number in spent.items() if kind == "destination"},
            )


def _names(place: Place) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("queue", place.queue), ("destination", place.destination)
