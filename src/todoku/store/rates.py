"""What arrived and ended over time: deliveries published, succeeded, retried, and become dead letters.

Every number has a bounded cost: exact while there are few rows, estimated beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from todoku.core.identity import uuid7
from todoku.store.columns import moment
from todoku.store.database import Database, Tx

_COUNTED: Final = 30_000
"""Up to this number the successes of a span are counted one by one; more are sampled."""

_PICKED: Final = 15_000
_PICKED_EACH: Final = 2_000
"""About so many of them are in a sample: in the whole span, and at most in each stretch."""

_SAMPLED: Final = 100_000
"""At most about so many rows are read for a sample: it is drawn from whole days, also for an hour."""

_FAILED: Final = 500
"""Failed attempts counted in each stretch; with more, their rate until then is taken for the whole stretch."""

_SKEW: Final = 600.0
"""Seconds by which a publisher's clock may be ahead of the database's."""


class FlowPoint(msgspec.Struct, frozen=True):
    """What happened in one stretch of time: deliveries that arrived and succeeded, attempts that failed and were
    retried, and attempts that made a dead letter."""

    at: datetime
    arrived: int
    succeeded: int
    retried: int
    failed: int


class PlaceFlow(msgspec.Struct, frozen=True):
    """How many deliveries of a queue to a destination succeeded, by stretch."""

    queue: str
    destination: str
    succeeded: tuple[int, ...]


class Flows(msgspec.Struct, frozen=True):
    """Stretches of `width` seconds in order, empty ones included. `exact` is False if a number is an estimate."""

    width: int
    points: tuple[FlowPoint, ...]
    places: tuple[PlaceFlow, ...]
    exact: bool


class _Failed(NamedTuple):
    """Attempts of a stretch that were retried, and that were final."""

    retried: int
    final: int
    exact: bool


_NONE: Final = _Failed(0, 0, exact=True)


class RateStore:
    """The rates of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def flows(self, *, since: datetime, until: datetime, width: int, rate: float = 0.0) -> Flows:
        """What happened in each `width` seconds from `since` to `until`, both on its multiples. Cost: bounded.

        `rate`: so many a second may have succeeded, if the caller knows; a burst is sampled then, and not counted.
        """
        starts = range(int(since.timestamp()), int(until.timestamp()), width)
        # The blocks of a span are found by a BRIN index, which is read by a bitmap.
        places, exact = self._database.read(lambda tx: _succeeded(tx, since, until, width, starts, rate), pinned=False)

        def rest(tx: Tx) -> tuple[list[int], dict[int, _Failed]]:
            return _arrived(tx, [*starts, starts.stop]), _failed(tx, starts, width)

        arrived, failed = self._database.read(rest)
        points = tuple(
            FlowPoint(moment(at), came, sum(place.succeeded[n] for place in places), *failed.get(at, _NONE)[:2])
            for n, (at, came) in enumerate(zip(starts, arrived, strict=True))
        )
        return Flows(width, points, places, exact and all(one.exact for one in failed.values()))

    def arrived(self, *, since: float, until: float) -> int:
        """How many deliveries arrived between two moments (unix seconds of the publishers' clocks)."""
        return self._database.read(lambda tx: _arrived(tx, [since, until])[0])


def _arrived(tx: Tx, edges: Sequence[float]) -> list[int]:
    """How many deliveries arrived between two edges: ids are drawn in order, so it is the distance of the first ones.

    Rows are not counted, so those pruned since count, too.
    """
    low = [str(uuid7(int(at * 1000), bytes(10))) for at in edges]
    asked = [{"n": n, "low": low[n], "at": at - _SKEW} for n, at in enumerate(edges)]
    found: dict[int, int | None] = dict(tx.rows("arrival_edges", edges=asked))
    ((last,),) = tx.rows("last_delivery")
    firsts = [first if (first := found.get(n)) is not None else last + 1 for n in range(len(edges))]
    return [max(0, later - first) for first, later in pairwise(firsts)]


def _succeeded(
    tx: Tx, since: datetime, until: datetime, width: int, starts: Sequence[int], rate: float
) -> tuple[tuple[PlaceFlow, ...], bool]:
    ((of_days, even),) = tx.rows("ended_size", since=since, until=until)
    about = max(even, min(of_days, rate * (until - since).total_seconds()))
    exact = about <= _COUNTED
    if exact:
        found = tx.rows("ended", since=since, until=until, width=width)
    else:
        picked = min(_PICKED, _PICKED_EACH * len(starts))
        step = max(1, round(about / picked), round(of_days / _SAMPLED))
        found = tx.rows("ended_sampled", since=since, until=until, width=width, step=step)
    numbers: dict[tuple[str, str], dict[int, int]] = {}
    for at, queue, destination, number in found:
        numbers.setdefault((queue, destination), {})[int(at)] = int(number)
    places = tuple(
        PlaceFlow(*place, tuple(by_start.get(at, 0) for at in starts)) for place, by_start in sorted(numbers.items())
    )
    return places, exact


def _failed(tx: Tx, starts: Sequence[int], width: int) -> dict[int, _Failed]:
    """Attempts that failed, by stretch. Where counting stopped, the rate until then is taken for the whole stretch."""
    found: dict[int, _Failed] = {}
    for at, number, final, until in tx.rows("failed", starts=list(starts), width=width, most=_FAILED):
        exact = number < _FAILED
        share = 1.0 if exact else width / max(0.001, float(until) - at)
        found[int(at)] = _Failed(round((number - final) * share), round(final * share), exact)
    return found
