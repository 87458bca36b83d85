"""How far ahead to claim: about half a second of work, so that a high priority never waits behind a hoard."""

from __future__ import annotations

from collections import deque
from typing import Final

_AHEAD: Final = 0.5
"""Seconds of work to hold beyond what runs."""

_WINDOW: Final = 2.0
"""Seconds of the past that are counted."""

_SHORTEST: Final = 0.02
"""A rate measured over less than this says nothing yet."""


class Pace:
    """The rate of one pool, and how many deliveries it should hold. `now` is always an argument."""

    def __init__(self, slots: int, most: int) -> None:
        self._slots = slots
        self._most = max(most, 1)
        self._done: deque[tuple[float, int]] = deque()
        self._total = 0

    def done(self, number: int, now: float) -> None:
        """So many attempts have ended."""
        self._done.append((now, number))
        self._total += number
        self._forget(now)

    def ahead(self, now: float) -> int:
        """How many should wait here, claimed and not started. None while attempts take longer than that."""
        self._forget(now)
        if not self._done:
            return 0
        elapsed = max(now - self._done[0][0], _SHORTEST)
        return min(self._most, int(self._total / elapsed * _AHEAD))

    def wanted(self, *, running: int, waiting: int, now: float) -> int:
        """How many to claim now: 0 while enough is here, so that claims come in batches worth their while."""
        ahead = self.ahead(now)
        room = self._slots - running + ahead - waiting
        enough = waiting > 0 and waiting >= ahead // 2
        return 0 if enough else max(0, min(room, self._most))

    def _forget(self, now: float) -> None:
        while self._done and self._done[0][0] < now - _WINDOW:
            self._total -= self._done.popleft()[1]
