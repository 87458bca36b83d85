"""Circuit breakers: all workers pause sending to a destination that keeps failing, without using up attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from todoku.core.outcome import Outcome, Retry
from todoku.core.projection import TRANSIENT

THRESHOLD: Final = 10
"""Transient failures in a row that open a breaker."""

_SHORTEST: Final = 5.0
_LONGEST: Final = 60.0

_TRANSIENT: Final = frozenset(
    {"NETWORK", "TIMEOUT", "BROKER_DOWN", "BROKER_TIMEOUT", "BROKER_DENIED"}
    | {"HTTP_5XX", "HTTP_BUSY", "HTTP_DNS", "HTTP_TLS", "HTTP_TIMEOUT", "HTTP_BAD_ANSWER"}
    | TRANSIENT
)
"""Failure reasons that are the destination's fault and not the message's."""


class Breaker:
    """The failures in a row of one destination, as this worker sees them."""

    def __init__(self) -> None:
        self.failures = 0
        self.openings = 0

    def record(self, outcome: Outcome) -> float | None:
        """Records an outcome. Returns the seconds to open the breaker for; 0: close it; None: no change."""
        if isinstance(outcome, Retry) and outcome.reason in _TRANSIENT:
            self.failures += 1
            return self.open() if self.failures >= THRESHOLD or self.openings else None
        was_open, self.failures, self.openings = self.openings > 0, 0, 0
        return 0.0 if was_open else None

    def open(self) -> float:
        """Opens the breaker, each time in a row for twice as long. Returns the seconds."""
        seconds = min(_SHORTEST * 2.0**self.openings, _LONGEST)
        self.openings += 1
        self.failures = 0
        return seconds


class Breakers:
    """The breakers of one worker. `on_change(destination, seconds)` is called when one opens or closes (0 seconds)."""

    def __init__(self, *, monotonic: Callable[[], float], on_change: Callable[[str, float], None]) -> None:
        self._monotonic = monotonic
        self._on_change = on_change
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}
        self._open_until: dict[str, float] = {}

    def __contains__(self, destination: str) -> bool:
        return destination in self._breakers

    def is_half_open(self, destination: str) -> bool:
        """Whether the breaker is half-open: one delivery at a time tests whether the destination works again."""
        breaker = self._breakers.get(destination)
        return breaker is not None and breaker.openings > 0

    def seconds_open(self, destination: str) -> float:
        """Returns for how many seconds no attempt may start for this destination."""
        if not self._open_until:
            return 0.0
        return max(0.0, self._open_until.get(destination, 0.0) - self._monotonic())

    def record(self, destination: str, outcome: Outcome) -> None:
        """Records the outcome of an attempt. Failures are ignored while the breaker is open: they were sent before."""
        with self._lock:
            if self.seconds_open(destination) and isinstance(outcome, Retry):
                return
            breaker = self._breakers.setdefault(destination, Breaker())
            self._apply(destination, breaker, breaker.record(outcome))

    def mark_open(self, destinations: Collection[str]) -> None:
        """Marks breakers that another worker opened, so that this one, too, tests them with one delivery first."""
        with self._lock:
            for destination in destinations:
                breaker = self._breakers.setdefault(destination, Breaker())
                breaker.openings = max(1, breaker.openings)

    def record_ping(self, destination: str, *, ok: bool) -> None:
        """Opens the breaker of a destination whose ping failed, or closes it when the ping succeeds."""
        with self._lock:
            breaker = Breaker() if ok else self._breakers.setdefault(destination, Breaker())
            self._breakers[destination] = breaker
            self._apply(destination, breaker, 0.0 if ok else breaker.open())

    def _apply(self, destination: str, breaker: Breaker, seconds: float | None) -> None:
        if not breaker.openings and not breaker.failures:
            del self._breakers[destination]
        if seconds is None:
            return
        self._open_until[destination] = self._monotonic() + seconds
        if not seconds:
            del self._open_until[destination]
        self._on_change(destination, seconds)
