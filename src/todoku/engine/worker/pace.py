"""How far ahead to claim: what starts within half a second, so that a high priority never waits behind a hoard.

A pool that has ended n attempts in the last half second will start about as many in the next one. Its slots end one
each whatever their attempts take, so these do not count: where attempts take longer than half a second, no slot ends
two of them, and nothing is claimed ahead, also if all slots end at the same moment. If attempts take as long as those
before them did, what is claimed ahead starts in time; if they turn out to be slower, it is given back (`PATIENCE`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_AHEAD: Final = 0.5
"""Seconds within which what is held beyond what runs should start."""

PATIENCE: Final = 2 * _AHEAD
"""Seconds after which what has not started is given back: attempts take longer than those before them did."""

_TICKS: Final = 25
_TICK: Final = _AHEAD / _TICKS
"""Ends are counted by ticks of so many seconds."""


class Ends(msgspec.Struct, frozen=True):
    """When attempts of one destination ended, and how many turns of a slot they were: a batch is one turn."""

    times: list[float]
    turns: int


def ends(settled: Iterable[tuple[str, float, float]], now: float) -> Mapping[str, Ends]:
    """Attempts settled by one transaction, given as (destination, started, ended), by destination.

    They count as if the last of them had ended now: how long the transaction took says nothing about the slots.
    """
    times: dict[str, list[float]] = {}
    turns: dict[str, set[float]] = {}
    for destination, started, ended in settled:
        if destination not in times:
            times[destination], turns[destination] = [], set()
        times[destination].append(ended)
        turns[destination].add(started)
    late = now - max((max(some) for some in times.values()), default=now)
    return {name: Ends([ended + late for ended in some], len(turns[name])) for name, some in times.items()}


class Pace:
    """What one pool has ended lately, and how many deliveries it should hold. `now` is always an argument.

    One thread calls `done`, another the rest.
    """

    def __init__(self, slots: int, most: int, batch: int = 1) -> None:
        self._slots = slots
        self._most = max(most, 1)
        self._batch = batch
        self._each = 1
        """How many deliveries a slot takes at once: twice as many as lately, up to a batch."""
        self._ended = [(0, 0)] * _TICKS
        """(tick, how many ended in it), each at its tick's remainder."""

    def done(self, ended: Ends) -> None:
        """These attempts have ended."""
        for tick, number in Counter([int(time / _TICK) for time in ended.times]).items():
            known, before = self._ended[tick % _TICKS]
            if known <= tick:
                self._ended[tick % _TICKS] = (tick, number + (before if known == tick else 0))
        self._each = min(self._batch, math.ceil(2 * len(ended.times) / ended.turns))

    def ahead(self, now: float) -> int:
        """How many should wait here, claimed and not started. None while attempts take longer than half a second."""
        oldest = int(now / _TICK) - _TICKS
        ended = sum([number for tick, number in self._ended if tick > oldest])
        return max(0, min(self._most, ended - self._slots * self._each))

    def wanted(self, *, occupied: int, waiting: int, now: float) -> int:
        """How many to claim now: 0 while enough is here, so that claims come in batches worth their while."""
        ahead = self.ahead(now)
        room = (self._slots - occupied) * self._each + ahead - waiting
        enough = waiting > 0 and waiting >= ahead // 2
        return 0 if enough else max(0, min(room, self._most))
