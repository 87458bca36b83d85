"""Breakers: a destination that keeps failing is left alone for a while, by all workers, without burning attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from todoku.core.outcome import Outcome, Retry

THRESHOLD: Final = 10
"""So many transient failures in a row open a breaker."""

_SHORTEST: Final = 5.0
_LONGEST: Final = 60.0

_TRANSIENT: Final = frozenset(
    {"NETWORK", "TIMEOUT", "BROKER_DOWN", "BROKER_TIMEOUT", "BROKER_DENIED"}
    | {"HTTP_5XX", "HTTP_BUSY", "HTTP_DNS", "HTTP_TLS", "HTTP_TIMEOUT", "HTTP_BAD_ANSWER"}
)
"""What speaks against the destination and not against the message."""


class Breaker:
    """The failures in a row of one destination, as this worker sees them."""

    def __init__(self) -> None:
        self.failures = 0
        self.openings = 0

    def ended(self, outcome: Outcome) -> float | None:
        """An attempt ended so. Seconds to open the breaker for; 0: close it; None: nothing to do."""
        if isinstance(outcome, Retry) and outcome.reason in _TRANSIENT:
            self.failures += 1
            return self.open() if self.failures >= THRESHOLD or self.openings else None
        was_open, self.failures, self.openings = self.openings > 0, 0, 0
        return 0.0 if was_open else None

    def open(self) -> float:
        """Open it, each time in a row for twice as long. Returns the seconds."""
        seconds = min(_SHORTEST * 2.0**self.openings, _LONGEST)
        self.openings += 1
        self.failures = 0
        return seconds


class Breakers:
    """The breakers of one worker. `on_change` is told what the other workers must know: (destination, seconds)."""

    def __init__(self, *, monotonic: Callable[[], float], on_change: Callable[[str, float], None]) -> None:
        self._monotonic = monotonic
        self._on_change = on_change
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}
        self._shut: dict[str, float] = {}

    def __contains__(self, destination: str) -> bool:
        return destination in self._breakers

    def probing(self, destination: str) -> bool:
        """Whether only one delivery at a time may find out if the destination is back."""
        breaker = self._breakers.get(destination)
        return breaker is not None and breaker.openings > 0

    def shut_for(self, destination: str) -> float:
        """For how many seconds nothing may start for this destination."""
        if not self._shut:
            return 0.0
        return max(0.0, self._shut.get(destination, 0.0) - self._monotonic())

    def ended(self, destination: str, outcome: Outcome) -> None:
        """An attempt ended so. What was sent before the breaker opened and fails after it opens it no further."""
        with self._lock:
            if self.shut_for(destination) and isinstance(outcome, Retry):
                return
            breaker = self._breakers.setdefault(destination, Breaker())
            self._act(destination, breaker, breaker.ended(outcome))

    def seen_open(self, destinations: Collection[str]) -> None:
        """Another worker has opened these: when their time is over, this one also tries with one delivery first."""
        with self._lock:
            for destination in destinations:
                breaker = self._breakers.setdefault(destination, Breaker())
                breaker.openings = max(1, breaker.openings)

    def pinged(self, destination: str, *, ok: bool) -> None:
        """A destination's own ping failed, or answers again."""
        with self._lock:
            breaker = Breaker() if ok else self._breakers.setdefault(destination, Breaker())
            self._breakers[destination] = breaker
            self._act(destination, breaker, 0.0 if ok else breaker.open())

    def _act(self, destination: str, breaker: Breaker, seconds: float | None) -> None:
        if not breaker.openings and not breaker.failures:
            del self._breakers[destination]
        if seconds is None:
            return
        self._shut[destination] = self._monotonic() + seconds
        if not seconds:
            del self._shut[destination]
        self._on_change(destination, seconds)
