"""How far ahead to claim: only deliveries that start within half a second, so that high priorities never wait long.

A pool that ended n attempts in the last half second will start about n in the next one. One attempt per slot is
subtracted, because each slot may end one at any moment: where attempts take longer than half a second, no slot ends two
of them, and nothing is claimed ahead. Deliveries claimed ahead start in time if attempts take as long as before; if
attempts become slower, those deliveries are given back after `PATIENCE` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_AHEAD: Final = 0.5
"""Seconds within which a delivery claimed ahead should start."""

PATIENCE: Final = 2 * _AHEAD
"""Seconds after which a delivery that has not started is given back: attempts have become slower."""

_TICKS: Final = 25
_TICK: Final = _AHEAD / _TICKS
"""Seconds of one tick, by which ends are counted."""


class Ends(msgspec.Struct, frozen=True):
    """How many attempts of one destination ended, by tick, and how many slot turns they took: a batch is one turn."""

    ticks: dict[int, int]
    number: int
    turns: int


def group_ends(settled: Iterable[tuple[str, float, float]], now: float) -> Mapping[str, Ends]:
    """Groups attempts settled by one transaction, given as (destination, started, ended), by destination.

    Their times are shifted so that the last one ended now: the duration of the transaction must not count.
    """
    times: dict[str, list[float]] = {}
    turns: dict[str, set[float]] = {}
    for destination, started, ended in settled:
        if destination not in times:
            times[destination], turns[destination] = [], set()
        times[destination].append(ended)
        turns[destination].add(started)
    shift = now - max((max(some) for some in times.values()), default=now)
    return {name: Ends(_count_by_tick(some, shift), len(some), len(turns[name])) for name, some in times.items()}


def _count_by_tick(times: list[float], shift: float) -> dict[int, int]:
    ticks: dict[int, int] = {}
    for time in times:
        tick = int((time + shift) / _TICK)
        ticks[tick] = ticks.get(tick, 0) + 1
    return ticks


class Pace:
    """How many attempts one pool ended lately, and how many deliveries it should hold. `now` is always an argument.

    One thread calls `done`, another the other methods.
    """

    def __init__(self, slots: int, most: int, batch: int = 1) -> None:
        self._slots = slots
        self._most = max(most, 1)
        self.batch = batch
        self._per_slot = 1
        """How many deliveries a slot is expected to take at once: twice as many as lately, up to a batch."""
        self._ended = [(0, 0)] * _TICKS
        """A ring buffer of (tick, how many ended in it), indexed by tick modulo `_TICKS`."""

    def done(self, ended: Ends) -> None:
        """Counts attempts that ended."""
        for tick, number in ended.ticks.items():
            known, before = self._ended[tick % _TICKS]
            if known <= tick:
                self._ended[tick % _TICKS] = (tick, number + (before if known == tick else 0))
        self._per_slot = min(self.batch, math.ceil(2 * ended.number / ended.turns))

    def ahead(self, now: float) -> int:
        """Returns how many deliveries should wait here, claimed and not started. 0 if attempts take over `_AHEAD`."""
        oldest = int(now / _TICK) - _TICKS
        ended = sum([number for tick, number in self._ended if tick > oldest])
        return max(0, min(self._most, ended - self._slots * self._per_slot))

    def wanted(self, *, occupied: int, waiting: int, now: float) -> int:
        """Returns how many to claim now; 0 while enough wait, so that claims come in large batches."""
        ahead = self.ahead(now)
        room = (self._slots - occupied) * self._per_slot + ahead - waiting
        enough = waiting > 0 and waiting >= ahead // 2
        return 0 if enough else max(0, min(room, self._most))
