"""How often somebody may ask: a bucket each, in memory, of this process alone."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

_MOST: Final = 10_000
"""So many buckets are remembered; the one that was asked longest ago is forgotten, which fills it."""


class Taken(msgspec.Struct, frozen=True):
    """Whether there was one to take, how many are left of how many, and the seconds until there is one again."""

    ok: bool
    limit: int
    left: int
    wait: float


class Buckets:
    """Buckets that hold `size` each and get `rate` a second. Asked from one event loop only."""

    def __init__(self, *, rate: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> Taken:
        """Take one out of the bucket of this name."""
        level, now = self._level(name)
        ok = level >= 1
        level -= ok
        self._known[name] = (level, now)
        self._known.move_to_end(name)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return self._taken(ok, level)

    def look(self, name: str) -> Taken:
        """Whether there is one to take; nothing is taken."""
        level, _ = self._level(name)
        return self._taken(level >= 1, level)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._clock()
        level, at = self._known.get(name, (float(self._size), now))
        return min(float(self._size), level + (now - at) * self._rate), now

    def _taken(self, ok: bool, level: float) -> Taken:
        return Taken(ok, self._size, int(level), 0.0 if level >= 1 else (1 - level) / self._rate)


def rate_headers(taken: Taken, now: float) -> dict[str, str]:
    """What a caller is told with a 429, in the words of QStash. `now`: unix seconds."""
    return {
        "burst-ratelimit-limit": str(taken.limit),
        "burst-ratelimit-remaining": str(taken.left),
        "burst-ratelimit-reset": str(math.ceil(now + taken.wait)),
        "retry-after": str(max(1, math.ceil(taken.wait))),
    }
