"""How far ahead to claim: only deliveries that start within half a second, so that high priorities never wait long.

A pool that ended n attempts in the last half second will start about n in the next one. One attempt per slot is
subtracted, because each slot may end one at any moment: where attempts take longer than half a second, no slot ends two
of them, and nothing is claimed ahead. A pool that began less than half a second ago ended its n in less time. Once each
slot has ended two on average, that time counts, but no more is expected than the slots can start if each attempt takes
as long as the longest of those n. Deliveries claimed ahead start in time if attempts take as long as before; if
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
    """How many attempts of one destination ended, by tick, and how many slot turns they took: a batch is one turn.

    Of each tick also the seconds that the longest of its attempts took.
    """

    ticks: dict[int, tuple[int, float]]
    number: int
    turns: int


def group_ends(batch: Iterable[tuple[str, float, float]], now: float) -> Mapping[str, Ends]:
    """Groups attempts that one transaction will settle, given as (destination, started, ended), by destination.

    Their times are shifted so that the last one ended now: their wait for the last transaction must not count.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    for destination, started, ended in batch:
        if destination not in times:
            times[destination] = []
        times[destination].append((ended, started))
    shift = now - max((max(some)[0] for some in times.values()), default=now)
    return {
        name: Ends(_count_by_tick(some, shift), len(some), len({started for _, started in some}))
        for name, some in times.items()
    }


def _count_by_tick(times: list[tuple[float, float]], shift: float) -> dict[int, tuple[int, float]]:
    ticks: dict[int, tuple[int, float]] = {}
    for ended, started in times:
        tick, took = int((ended + shift) / _TICK), ended - started
        number, longest = ticks.get(tick, (0, 0.0))
        ticks[tick] = (number + 1, took if took > longest else longest)
    return ticks


class Pace:
    """How many attempts one pool ended lately, and how many deliveries it should hold. `now` is always an argument.

    One thread calls `done`, another the other methods.
    """

    def __init__(self, slots: int, most: int, batch: int = 1, *, claims_ahead: int = 1) -> None:
        self._slots = slots
        self._most = max(most, 1)
        self._most_ahead = self._most * claims_ahead
        """Two claims ahead let the slots start one of them while the other is on its way."""
        self.batch = batch
        self._per_slot = 1
        """How many deliveries a slot is expected to take at once: twice as many as lately, up to a batch."""
        self._ended = [(0, 0, 0.0)] * _TICKS
        """A ring buffer of (tick, how many ended in it, the longest), indexed by tick modulo `_TICKS`."""

    def done(self, ended: Ends) -> None:
        """Counts attempts that ended."""
        for tick, (number, longest) in ended.ticks.items():
            known, before, longest_before = self._ended[tick % _TICKS]
            if known == tick:
                self._ended[tick % _TICKS] = (tick, before + number, max(longest, longest_before))
            elif known < tick:
                self._ended[tick % _TICKS] = (tick, number, longest)
        self._per_slot = min(self.batch, math.ceil(2 * ended.number / ended.turns))

    def ahead(self, now: float) -> int:
        """Returns how many deliveries should wait here, claimed and not started. 0 if attempts take over `_AHEAD`."""
        oldest, at_once = int(now / _TICK) - _TICKS, self._slots * self._per_slot
        lately = [one for one in self._ended if one[0] > oldest]
        ended = sum([number for _, number, _ in lately])
        if ended >= 2 * at_once:
            ended = max(ended, self._expected(ended, lately, now))
        return max(0, min(self._most_ahead, ended - at_once))

    def _expected(self, ended: int, lately: list[tuple[int, int, float]], now: float) -> int:
        """Returns how many will start in the next `_AHEAD` seconds if so many `ended` since the first of them began."""
        longest = max([took for _, _, took in lately])
        working = max([now - tick * _TICK + took for tick, _, took in lately])
        return int(min(ended * _AHEAD / working, self._slots * self._per_slot * _AHEAD / max(longest, _TICK / 10)))

    def wanted(self, *, occupied: int, waiting: int, now: float) -> int:
        """Returns how many to claim now; 0 while enough wait, so that claims come in large batches."""
        ahead = self.ahead(now)
        room = (self._slots - occupied) * self._per_slot + ahead - waiting
        enough = waiting > 0 and waiting >= ahead // 2
        return 0 if enough else max(0, min(room, self._most))
