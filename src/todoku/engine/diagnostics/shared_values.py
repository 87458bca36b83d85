"""Values that many viewers look at: each is computed once for all of them, and seldom enough to cost little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cachetools import TLRUCache

T = TypeVar("T")

_MOST_VALUES: Final = 256
_SHARE: Final = 50.0
"""A value is kept for so many times the seconds it took, so that it takes at most a fiftieth of one core's time."""
_LONGEST: Final = 10.0


class SharedValues:
    """Values by name, each with the time it is kept. Thread-safe: one thread computes a value, the others wait."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._values: TLRUCache[str, tuple[Any, float]] = TLRUCache(
            _MOST_VALUES, ttu=lambda _name, value, now: now + value[1], timer=monotonic
        )
        self._lock = threading.Lock()
        self._computing: dict[str, threading.Lock] = {}

    def clear(self) -> None:
        """Forgets all values."""
        with self._lock:
            self._values.clear()

    def get(self, name: str, compute: Callable[[], T], *, kept: float = 2.0, share: float = _SHARE) -> T:
        """Returns the value of this name; computes it if it is older than `kept` seconds and than it is worth.

        `share`: it is kept for so many times the seconds it took (0: made of other values, which are kept longer).
        """
        with self._lock:
            if (found := self._values.get(name)) is not None:
                return found[0]  # type: ignore[no-any-return]
            computing = self._computing.setdefault(name, threading.Lock())
        with computing:
            with self._lock:
                if (found := self._values.get(name)) is not None:
                    return found[0]  # type: ignore[no-any-return]
            began = self._monotonic()
            try:
                value = compute()
            finally:
                with self._lock:
                    self._computing.pop(name, None)
            with self._lock:
                self._values[name] = (value, max(kept, min(_LONGEST, share * (self._monotonic() - began))))
            return value
