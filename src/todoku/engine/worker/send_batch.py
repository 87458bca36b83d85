"""3b. Sending: a batch to a destination, made of the next row of each lane, so that one bad message costs its
neighbours nothing (I13) and every lane stays in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.registry import Destination, Outgoing


class Abreast:
    """Lanes of one destination. In each, a row is sent when the one before it has arrived, never earlier (I10)."""

    def __init__(self, first: tuple[Claimed, ...]) -> None:
        self._lanes = [deque(first)]

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: tuple[Claimed, ...]) -> None:
        """One more."""
        self._lanes.append(deque(lane))

    def heads(self) -> list[Claimed]:
        """The next row of each lane, taken out."""
        return [lane.popleft() for lane in self._lanes]

    def ended(self, going: Sequence[bool]) -> list[Claimed]:
        """The heads have ended: of each, whether its lane may go on. What follows one that failed is not to be sent."""
        stopped = [claim for lane, goes in zip(self._lanes, going, strict=True) if not goes for claim in lane]
        self._lanes = [lane for lane, goes in zip(self._lanes, going, strict=True) if goes and lane]
        return stopped


Sent = tuple[Outcome, Exception | None]


async def send(sender: Destination, batch: Sequence[Outgoing]) -> list[Sent]:
    """One outcome per message, whatever the destination does."""
    if len(batch) == 1:
        return [await _alone(sender, batch[0])]
    try:
        return _checked(await sender.send(batch), len(batch))
    except Exception as error:  # noqa: BLE001 - whatever a destination raises is an outcome
        outcome = classify(error)
        if isinstance(outcome, Retry) and outcome.reason != "INTERNAL_ERROR":
            return [(outcome, error)] * len(batch)  # the destination is not there: it fails for all of them alike
    # One of them broke the batch. Each alone, so that only that one pays for it.
    return [await _alone(sender, message) for message in batch]


async def _alone(sender: Destination, message: Outgoing) -> Sent:
    try:
        return _checked(await sender.send([message]), 1)[0]
    except Exception as error:  # noqa: BLE001 - whatever a destination raises is an outcome
        return classify(error), error


def _checked(outcomes: Sequence[Outcome] | None, number: int) -> list[Sent]:
    if outcomes is None:
        return [(Done(), None)] * number
    if len(outcomes) != number or not all(isinstance(one, Done | Retry | Abort | Snooze) for one in outcomes):
        raise TypeError(f"send() must return one outcome for each of {number} messages, or None; not {outcomes!r}")
    return [(one, None) for one in outcomes]
