"""Values that many viewers look at: each is computed once for all of them, and seldom enough to cost little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from cachetools import LRUCache

from todoku.core.errors import TodokuError
from todoku.engine.observability.log import Log

T = TypeVar("T")

_MOST_VALUES: Final = 256
_SHARE: Final = 500.0
"""A value is kept for so many times the seconds it took, so that the twenty of a page take a few hundredths of a core's
time together. Beside busy workers each takes longer, and so is read less often."""
_LONGEST: Final = 10.0
_SLOW: Final = 0.05
"""Seconds. For a value that took longer no viewer waits again while it is looked at: it is computed beside them."""
_STALE: Final = 10.0
"""Seconds for which a slow value may still be shown after its time, until the next one is there."""


class _Value(msgspec.Struct, frozen=True):
    """A value, how long it took, and until when it is kept."""

    value: Any
    took: float
    until: float


class SharedValues:
    """Values by name, each with the time it is kept. Thread-safe: one thread computes a value, the others wait."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._values: LRUCache[str, _Value] = LRUCache(_MOST_VALUES)
        self._lock = threading.Lock()
        self._computing: dict[str, threading.Lock] = {}
        self._cleared = 0

    @property
    def cleared(self) -> int:
        """How many times all values were forgotten."""
        return self._cleared

    def clear(self) -> None:
        """Forgets all values."""
        with self._lock:
            self._values.clear()
            self._cleared += 1

    def get(self, name: str, compute: Callable[[], T], *, kept: float = 2.0, share: float = _SHARE) -> T:
        """Returns the value of this name; computes it if it is older than `kept` seconds and than it is worth.

        `share`: it is kept for so many times the seconds it took (0: made of other values, which are kept longer).
        """

        def put() -> T:
            began = self._monotonic()
            value = compute()
            now = self._monotonic()
            with self._lock:
                took = now - began
                self._values[name] = _Value(value, took, now + max(kept, min(_LONGEST, share * took)))
            return value

        with self._lock:
            found, now = self._values.get(name), self._monotonic()
            if found is not None and now < found.until:
                return found.value  # type: ignore[no-any-return]
            computing = self._computing.setdefault(name, threading.Lock())
        if found is not None and share and found.took > _SLOW and now < found.until + _STALE:
            if computing.acquire(blocking=False):
                threading.Thread(target=self._refresh, args=(name, put, computing), daemon=True).start()
            return found.value  # type: ignore[no-any-return]
        with computing:
            with self._lock:
                found = self._values.get(name)
                if found is not None and self._monotonic() < found.until:
                    return found.value  # type: ignore[no-any-return]
            return put()

    def _refresh(self, name: str, put: Callable[[], object], computing: threading.Lock) -> None:
        """Computes a value beside the viewers. After a failure the next viewer computes it, and sees the error."""
        try:
            put()
        except TodokuError as error:
            Log(value=name).warning("NUMBERS_NOT_READ", error_type=type(error).__name__, error=str(error))
            with self._lock:
                self._values.pop(name, None)
        finally:
            computing.release()
