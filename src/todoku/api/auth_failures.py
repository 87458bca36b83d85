"""Requests refused because of their token: each is counted; a log line every few seconds summarizes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Metrics

EVERY: Final = 10.0
"""Seconds between two log lines, so that a flood of wrong tokens does not flood the log."""

_MOST: Final = 1000
"""Addresses that one line counts separately; the rest are counted as `others`."""

OTHERS: Final = "others"


class AuthFailures:
    """Counts and logs authentication failures. For one event loop only."""

    def __init__(self, metrics: Metrics, *, every: float = EVERY) -> None:
        self._metrics, self._every = metrics, every
        self._statuses: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, status: int, address: str) -> None:
        """Counts a request from this address that was refused with this status."""
        self._metrics.add(counting.AUTH_FAILURES, 1, str(status))
        self._statuses[str(status)] += 1
        is_separate = address in self._addresses or len(self._addresses) < _MOST
        self._addresses[address if is_separate else OTHERS] += 1
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            loop.call_later(self._every, self._log)

    def _log(self) -> None:
        statuses, addresses = dict(self._statuses), self._addresses
        self._loop, self._statuses, self._addresses = None, Counter(), Counter()
        ((most, number),) = addresses.most_common(1)
        Log().warning(
            "AUTH_FAILED", number=sum(statuses.values()), statuses=statuses, addresses=len(addresses),
            most_from=most, most_number=number, seconds=self._every,
        )  # fmt: skip
