"""Back-off policies: how long to wait before the next attempt. A table, a linear or a capped exponential function.

The caller draws `jitter` in [0, 1); it adds up to 10 % to the wait and never shortens it.
"""

from __future__ import annotations

import math
from typing import Final, assert_never

import msgspec

from todoku.core.errors import InvalidSetting

JITTER_SHARE: Final = 0.1
LONGEST: Final = 30 * 86_400.0
"""Upper bound of every policy, in seconds."""


class BackoffTable(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits for the n-th entry; the last entry repeats."""

    delays: tuple[float, ...]


class Linear(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits n times the step."""

    step: float


class Exponential(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits base × factor^(n-1), at most cap."""

    base: float
    factor: float
    cap: float


Backoff = BackoffTable | Linear | Exponential


def table(*delays: float) -> BackoffTable:
    """Wait `delays` seconds in turn: `table(5, 10, 20)`."""
    if not delays:
        raise InvalidSetting("a back-off table needs at least one delay", hint="for example table(5, 10, 20)")
    return BackoffTable(tuple(_positive(delay, "a delay of the table") for delay in delays))


def linear(*, seconds: float = 0.0, minutes: float = 0.0) -> Linear:
    """Wait 1, 2, 3 … times the step: `linear(minutes=5)` is 5, 10, 15 minutes."""
    return Linear(_positive(seconds + 60 * minutes, "the step", zero=False))


def exponential(base: float = 1.0, *, factor: float = 2.0, cap: float = 60.0) -> Exponential:
    """Wait base × factor^(n-1), at most `cap`: `exponential(base=1, cap=60)` is 1, 2, 4 … 60."""
    if not 1 <= factor < math.inf:
        raise InvalidSetting(f"factor cannot be {factor}", hint="use a factor ≥ 1, so that waits do not get shorter")
    return Exponential(_positive(base, "base", zero=False), float(factor), _positive(cap, "cap", zero=False))


def delay(policy: Backoff, attempt: int, *, jitter: float) -> float:
    """Returns the seconds to wait after attempt number `attempt` (from 1) failed."""
    match policy:
        case BackoffTable(delays):
            wait = delays[min(attempt, len(delays)) - 1]
        case Linear(step):
            wait = step * attempt
        case Exponential(base, factor, cap):
            wait = _exponential(base, factor, cap, attempt)
        case _:
            assert_never(policy)
    return min(wait, LONGEST) * (1 + JITTER_SHARE * jitter)


def _exponential(base: float, factor: float, cap: float, attempt: int) -> float:
    try:
        return float(min(cap, base * factor ** (attempt - 1)))
    except OverflowError:
        return cap


def _positive(value: float, what: str, *, zero: bool = True) -> float:
    if not 0 <= value <= LONGEST or (value == 0 and not zero):
        raise InvalidSetting(f"{what} cannot be {value} s", hint=f"give seconds from 0 to {LONGEST:.0f}")
    return float(value)


DEFAULT: Final = table(5, 10, 20, 40, 80, 160)
