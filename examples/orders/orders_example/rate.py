"""How many requests a client may make in a minute."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MINUTE: Final = 60.0
_MANY: Final = 10_000


class Rate:
    """At most `most` requests of a client in any minute, in this process."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._asked: dict[str, deque[float]] = {}
        self._counting = threading.Lock()

    def wait(self, client: str) -> int:
        """0: it may, and is counted. Else how many seconds until it may; that it asked is not counted."""
        now = self._clock()
        with self._counting:
            if len(self._asked) > _MANY:
                self._forget(now)
            asked = self._asked.setdefault(client, deque())
            while asked and asked[0] <= now - MINUTE:
                asked.popleft()
            if len(asked) >= self._most:
                return max(1, math.ceil(asked[0] + MINUTE - now))
            asked.append(now)
            return 0

    def _forget(self, now: float) -> None:
        """Who has not asked for a minute."""
        self._asked = {client: asked for client, asked in self._asked.items() if asked and asked[-1] > now - MINUTE}
