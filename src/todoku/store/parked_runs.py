"""How many runs of workflows are parked, by what they wait for.

Parked runs are deliveries whose time has not come; what each waits for is in its steps. Counting is from an index and
bounded, and only the steps of a few runs are read: the others of the same place are taken to wait for the same things.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from todoku.core.decision import FOREVER
from todoku.core.flow import WAITS_FOR, WaitsFor
from todoku.store.database import Database, Tx

COUNTED: Final = 10_000
"""Runs that are counted in each place, of those that wait for a time, and of those that only something wakes."""

SAMPLED: Final = 100
"""Runs of each whose steps are read. Up to so many, the numbers are exact."""

_KINDS: Final = ((0.0, FOREVER / 2), (FOREVER / 2, FOREVER * 10))
"""Seconds from now: the runs that wait for a time, and those that only a signal or the end of children wakes."""


class ParkedRuns:
    """The parked runs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(self) -> dict[WaitsFor, int]:
        """Returns how many runs are parked, by what they wait for. Those in order, or with a limit per key, are not."""
        return self._database.read(_count)


def _count(tx: Tx) -> dict[WaitsFor, int]:
    found: dict[WaitsFor, float] = dict.fromkeys(WAITS_FOR.values(), 0.0)
    if tx.rows("has_steps")[0][0]:
        for queue, destination, priority, _ in tx.rows("waiting", destinations=None):
            for soonest, latest in _KINDS:
                place: dict[str, Any] = {
                    "queue": queue, "destination": destination, "priority": priority, "soonest": soonest,
                    "latest": latest,
                }  # fmt: skip
                for kind, number in _estimate(tx, place).items():
                    found[kind] += number
    return {kind: round(number) for kind, number in found.items()}


def _estimate(tx: Tx, place: dict[str, Any]) -> dict[WaitsFor, float]:
    """Of the runs of one place that sleep this long. A place has runs or other deliveries, never both."""
    kinds = [kind for (kind,) in tx.rows("parked_sample", most=SAMPLED, **place)]
    waits = Counter(WAITS_FOR[kind] for kind in kinds if kind in WAITS_FOR)
    if len(kinds) < SAMPLED or not waits:
        return dict(waits)
    ((number,),) = tx.rows("parked_number", most=COUNTED, **place)
    return {kind: found * number / len(kinds) for kind, found in waits.items()}
