"""Many writes to a search server, in requests whose size follows what the server takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from todoku.core.failure import DeliveryError
from todoku.core.projection import SearchSession, Write, WriteAnswer

_PATIENCE: Final = 5
"""Busy answers in a row after which the rest is left to the back-off of its deliveries."""

_PAUSE: Final = 0.05


class BulkSize:
    """The number of documents in one request: halved when the server is busy, then slowly raised again."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.now = largest

    def halve(self) -> None:
        """Takes half as many from now on."""
        self.now = max(1, self.now // 2)

    def grow(self) -> None:
        """Takes a tenth more from now on."""
        self.now = min(self.largest, self.now + max(1, self.now // 10))


async def write_all(
    session: SearchSession, writes: Sequence[Write], size: BulkSize
) -> list[WriteAnswer | DeliveryError]:
    """Writes documents, and returns what became of each: the server's answer, or why there is none.

    What the server is too busy for (429) is sent again in smaller requests, a few times. `size` is shared with other
    batches, which may raise it meanwhile: what was refused here is halved here.
    """
    found: list[WriteAnswer | DeliveryError] = [WriteAnswer(429, "busy", "not sent")] * len(writes)
    left, busy, own = list(range(len(writes))), 0, BulkSize(size.largest)
    while left and busy < _PATIENCE:
        number = min(size.now, own.now)
        some, rest = left[:number], left[number:]
        answers = await _send(session, [writes[place] for place in some])
        for place, answer in zip(some, answers, strict=True):
            found[place] = answer
        again = [place for place in some if _is_to_be_halved(found[place], len(some))]
        left = again + rest
        if not again:
            size.grow()
            own.grow()
            busy = 0
            continue
        size.halve()
        own.now = max(1, len(some) // 2)
        busy += 1
        await asyncio.sleep(_PAUSE * 2**busy * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, no secret
    return found


async def _send(session: SearchSession, writes: Sequence[Write]) -> Sequence[WriteAnswer | DeliveryError]:
    try:
        return await session.write(writes)
    except DeliveryError as error:
        return [error] * len(writes)


def _is_to_be_halved(answer: WriteAnswer | DeliveryError, number: int) -> bool:
    """Whether a smaller request may do: the server is busy, or the request was too large."""
    if isinstance(answer, WriteAnswer):
        return answer.status == 429 and "block" not in answer.kind
    return answer.reason == "SEARCH_BUSY" or (answer.reason == "TOO_LARGE" and number > 1)
