"""A limit on concurrency and rate, over all workers."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting

FASTEST: Final = 1_000_000
"""The largest concurrency and rate: a higher limit would have no effect."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `concurrency` at once, and at most `rate` started per second. None: not limited; one of both is required.

    `@box.job(per_key=todoku.Limit(concurrency=2))` applies to each key separately, over all workers.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is None and self.rate is None:
            hint = "Limit(concurrency=2), Limit(rate=10), or both"
            raise InvalidSetting("a Limit without concurrency and rate limits nothing", hint=hint)
        if self.concurrency is not None and not _is_concurrency(self.concurrency):
            hint = "a whole number, 1 or more; to stop it, pause its queue"
            raise InvalidSetting(f"concurrency cannot be {self.concurrency!r}", hint=hint)
        if self.rate is not None and not _is_rate(self.rate):
            raise InvalidSetting(f"rate cannot be {self.rate!r}", hint="starts per second, above 0: 10, or 0.1")


def _is_concurrency(concurrency: object) -> bool:
    return type(concurrency) is int and 0 < concurrency <= FASTEST


def _is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and type(rate) is not bool and math.isfinite(rate) and 0 < rate <= FASTEST
