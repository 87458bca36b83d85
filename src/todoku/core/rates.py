"""Percentiles of durations, and how long a backlog lasts at the present rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Trend = Literal["empty", "drains", "stands", "grows"]
"""What becomes of a backlog if the rates stay as they are."""


class Percentiles(msgspec.Struct, frozen=True):
    """Half, 95 % and 99 % of `number` durations were at most so many seconds."""

    p50: float
    p95: float
    p99: float
    number: int


class Eta(msgspec.Struct, frozen=True):
    """When a backlog will be gone. `seconds` is None unless it is empty or drains."""

    trend: Trend
    seconds: float | None


def percentiles(durations: Iterable[float]) -> Percentiles | None:
    """Returns the percentiles of durations (nearest rank); None if there are none."""
    ordered = sorted(durations)
    if not ordered:
        return None

    def at(share: int) -> float:
        return ordered[-(-len(ordered) * share // 100) - 1]

    return Percentiles(at(50), at(95), at(99), len(ordered))


def estimate_eta(backlog: int, *, ended: float, arrived: float) -> Eta:
    """Returns when `backlog` deliveries will have ended, if so many end and arrive a second."""
    if backlog <= 0:
        return Eta("empty", 0.0)
    if ended > arrived:
        return Eta("drains", backlog / (ended - arrived))
    return Eta("grows" if arrived > ended else "stands", None)
