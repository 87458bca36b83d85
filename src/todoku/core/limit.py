"""How much of something may run: so many at once, so many a second. Of one key, of all workers together."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting

FASTEST: Final = 1_000_000
"""More than so many, at once or a second, is no limit."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `concurrency` at once, at most `rate` started a second; None: no such limit, but one of them is said.

    `@box.job(per_key=todoku.Limit(concurrency=2))` holds for each key by itself, over all workers.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is None and self.rate is None:
            hint = "Limit(concurrency=2), Limit(rate=10), or both"
            raise InvalidSetting("a Limit without concurrency and rate limits nothing", hint=hint)
        if self.concurrency is not None and not _is_number(self.concurrency):
            hint = "a whole number, 1 or more; to stop it, pause its queue"
            raise InvalidSetting(f"concurrency cannot be {self.concurrency!r}", hint=hint)
        if self.rate is not None and not _is_rate(self.rate):
            raise InvalidSetting(f"rate cannot be {self.rate!r}", hint="starts a second, above 0: 10, or 0.1")


def _is_number(concurrency: object) -> bool:
    return type(concurrency) is int and 0 < concurrency <= FASTEST


def _is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and type(rate) is not bool and math.isfinite(rate) and 0 < rate <= FASTEST
