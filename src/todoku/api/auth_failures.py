"""Requests that were refused because of their token: each is counted, and a line every few seconds tells of all."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Metrics

EVERY: Final = 10.0
"""Seconds that one line tells of: a flood of wrong tokens is not a flood of lines."""

_MOST: Final = 1000
"""Addresses that are told apart in one line."""

OTHERS: Final = "others"


class Failures:
    """Counts and logs failures. Used from one event loop."""

    def __init__(self, metrics: Metrics, *, every: float = EVERY) -> None:
        self._metrics, self._every = metrics, every
        self._statuses: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, status: int, address: str) -> None:
        """A request from this address was answered so, because of its token."""
        self._metrics.add(counting.AUTH_FAILURES, 1, str(status))
        self._statuses[str(status)] += 1
        known = address in self._addresses or len(self._addresses) < _MOST
        self._addresses[address if known else OTHERS] += 1
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            loop.call_later(self._every, self._tell)

    def _tell(self) -> None:
        statuses, addresses = dict(self._statuses), self._addresses
        self._loop, self._statuses, self._addresses = None, Counter(), Counter()
        ((most, number),) = addresses.most_common(1)
        Log().warning(
            "AUTH_FAILED", number=sum(statuses.values()), statuses=statuses, addresses=len(addresses),
            most_from=most, most_number=number, seconds=self._every,
        )  # fmt: skip
