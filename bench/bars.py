"""Bars: what was measured beside what is required. They are printed, never enforced: a busy machine is no bug."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One requirement. `at_most` turns it round: smaller is better."""

    name: str
    measured: float
    required: float
    unit: str = ""
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.measured <= self.required if self.at_most else self.measured >= self.required

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "short"
        return f"bar {self.name} {self.measured:.2f}{self.unit} {self.required:.2f}{self.unit} {verdict}"


def report(bars: Sequence[Bar]) -> None:
    """One line per bar, and a last line that counts them."""
    for bar in bars:
        print(bar)
    good = sum(bar.ok for bar in bars)
    print(f"{good} ok, {len(bars) - good} short")


def rate(number: int, work: Callable[[], int]) -> float:
    """How many a second `work` does; it must do exactly `number`."""
    began = time.perf_counter()
    done = work()
    took = time.perf_counter() - began
    if done != number:
        raise RuntimeError(f"{done} instead of {number} were done")
    return number / took


def compared(rounds: int, say: str, *contenders: tuple[str, Callable[[], float]]) -> list[float]:
    """The median rate of each contender. They take turns, so that a noisy minute disturbs all of them."""
    rates: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for turn in range(rounds):
        for name, measure in contenders:
            rates[name].append(measure())
            print(f"  {say}, round {turn + 1} of {rounds}: {name} {rates[name][-1]:,.0f}/s", flush=True)
    return [statistics.median(rates[name]) for name, _ in contenders]
