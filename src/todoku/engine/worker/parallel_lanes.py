"""Lanes side by side: a batch for a destination is made of the next row of each, so that every lane stays in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from todoku.core.message import Claimed


class Abreast:
    """Lanes of one destination. In each, a row is sent when the one before it has arrived, never earlier (I10)."""

    def __init__(self, first: tuple[Claimed, ...]) -> None:
        self._lanes = [deque(first)]

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: tuple[Claimed, ...]) -> None:
        """One more."""
        self._lanes.append(deque(lane))

    def heads(self) -> list[Claimed]:
        """The next row of each lane, taken out."""
        return [lane.popleft() for lane in self._lanes]

    def ended(self, going: Sequence[bool]) -> list[Claimed]:
        """The heads have ended: of each, whether its lane may go on. What follows one that failed is not to be sent."""
        stopped = [claim for lane, goes in zip(self._lanes, going, strict=True) if not goes for claim in lane]
        self._lanes = [lane for lane, goes in zip(self._lanes, going, strict=True) if goes and lane]
        return stopped
