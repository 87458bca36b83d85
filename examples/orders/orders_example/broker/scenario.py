"""What a paper broker does, by scenario: `AAPL=down,timeout,fill;BTC-USD=reject`."""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

import msgspec

import todoku

Kind = Literal["fill", "partial", "reject", "invalid", "latency", "timeout", "down", "error"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)


class Step(msgspec.Struct, frozen=True):
    """What becomes of one attempt. `amount`: milliseconds of `latency`, per cent of `partial`."""

    kind: Kind = "fill"
    amount: int = 0


class Scenario(msgspec.Struct, frozen=True):
    """For each instrument, what becomes of the first, second, … attempt of an order; the last step stays."""

    steps: dict[str, tuple[Step, ...]] = {}

    def step(self, instrument: str, attempt: int) -> Step:
        """What becomes of an order's attempt, counted from 0."""
        steps = self.steps.get(instrument) or (Step(),)
        return steps[min(attempt, len(steps) - 1)]


def read_scenario(text: str, name: str = "PAPER_SCENARIO") -> Scenario:
    """The scenario that the setting `name` holds, or InvalidSetting."""
    steps: dict[str, tuple[Step, ...]] = {}
    for part in filter(None, text.split(";")):
        instrument, _, told = part.partition("=")
        steps[instrument.strip()] = tuple(_step(word.strip(), name) for word in told.split(","))
    return Scenario(steps)


def _step(word: str, name: str) -> Step:
    kind, _, amount = word.partition(":")
    if kind not in KINDS or (amount and not amount.isdecimal()):
        raise todoku.InvalidSetting(
            f"{name} cannot have {word!r}", hint=f"{', '.join(KINDS)}; latency:MS, partial:PERCENT"
        )
    return Step(cast("Kind", kind), int(amount or 0))
