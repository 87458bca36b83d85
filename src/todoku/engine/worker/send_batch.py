"""3b. Sending: a batch to a destination, so that one bad message costs its neighbours nothing (I13)."""

from __future__ import annotations

from collections.abc import Sequence

from todoku.core.failure import classify
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.registry import Destination, Outgoing

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
