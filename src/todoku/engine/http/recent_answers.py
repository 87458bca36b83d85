"""What was found out lately, so that the usual request costs no query."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

MOST: Final = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """What was found out lately, by key; at most so many. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float], *, lasts: float, most: int = MOST) -> None:
        self._monotonic = monotonic
        self._lasts = lasts
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """What is remembered; None: nothing, or it is too long ago."""
        with self._lock:
            found = self._found.get(key)
        return found[0] if found is not None and self._monotonic() < found[1] else None

    def put(self, key: K, value: V) -> None:
        """Remember."""
        with self._lock:
            self._found[key] = (value, self._monotonic() + self._lasts)
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)

    def forget(self, key: K) -> None:
        """Look again next time."""
        with self._lock:
            self._found.pop(key, None)

    def clear(self) -> None:
        """Look again next time, whatever it is."""
        with self._lock:
            self._found.clear()
