"""3b. Sending a batch to a destination, so that one bad message does not fail its neighbours (I13).

Of lanes, a batch contains the next row of each, so every lane stays in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.registry import Destination, Outgoing


class ParallelLanes:
    """Lanes of one destination, sent in parallel. A row is sent only after the one before it arrived (I10)."""

    def __init__(self, first: tuple[Claimed, ...]) -> None:
        self._lanes = [deque(first)]

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: tuple[Claimed, ...]) -> None:
        """Adds a lane."""
        self._lanes.append(deque(lane))

    def heads(self) -> list[Claimed]:
        """Removes and returns the next row of each lane."""
        return [lane.popleft() for lane in self._lanes]

    def drop_stopped(self, going: Sequence[bool]) -> list[Claimed]:
        """Drops the lanes whose head failed (`going` is False) and returns their remaining rows, to be given back."""
        stopped = [claim for lane, goes in zip(self._lanes, going, strict=True) if not goes for claim in lane]
        self._lanes = [lane for lane, goes in zip(self._lanes, going, strict=True) if goes and lane]
        return stopped


SendResult = tuple[Outcome, Exception | None]


async def send(sender: Destination, batch: Sequence[Outgoing]) -> list[SendResult]:
    """Sends a batch. Returns one outcome per message, whatever the destination raises."""
    if len(batch) == 1:
        return [await _send_alone(sender, batch[0])]
    try:
        return _check_outcomes(await sender.send(batch), len(batch))
    except Exception as error:  # noqa: BLE001 - whatever a destination raises is an outcome
        outcome = classify(error)
        if isinstance(outcome, Retry) and outcome.reason != "INTERNAL_ERROR":
            return [(outcome, error)] * len(batch)  # the destination is unavailable, whatever the message
    # One message broke the batch: send each alone, so that only that one fails.
    return [await _send_alone(sender, message) for message in batch]


async def _send_alone(sender: Destination, message: Outgoing) -> SendResult:
    try:
        return _check_outcomes(await sender.send([message]), 1)[0]
    except Exception as error:  # noqa: BLE001 - whatever a destination raises is an outcome
        return classify(error), error


def _check_outcomes(outcomes: Sequence[Outcome] | None, number: int) -> list[SendResult]:
    if outcomes is None:
        return [(Done(), None)] * number
    if len(outcomes) != number or not all(isinstance(one, Done | Retry | Abort | Snooze) for one in outcomes):
        raise TypeError(f"send() must return one outcome for each of {number} messages, or None; not {outcomes!r}")
    return [(one, None) for one in outcomes]
