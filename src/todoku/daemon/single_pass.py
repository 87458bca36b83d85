"""`todoku run --once`: one pass in this process, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from todoku.core.errors import CannotStart
from todoku.daemon.start import DaemonOptions, check_migrated, checked_app
from todoku.engine.observability.log import configure_logging
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry


class Did(msgspec.Struct, frozen=True):
    """One attempt of the pass."""

    message_id: str
    topic: str
    destination: str
    attempt: int
    status: str
    reason: str | None
    error: str | None


class Pass(msgspec.Struct, frozen=True):
    """What one pass came to."""

    deliveries: tuple[Did, ...]

    def as_dict(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "settled": len(self.deliveries),
            **{status: self._numbers()[status] for status in ("succeeded", "failed", "aborted", "pending")},
            "deliveries": [msgspec.to_builtins(did) for did in self.deliveries],
        }

    def as_lines(self) -> list[str]:
        """A line for all of them, and one for each."""
        if not self.deliveries:
            return ["nothing was due"]
        numbers = ", ".join(f"{number} {status}" for status, number in self._numbers().most_common())
        return [f"{len(self.deliveries)} attempts: {numbers}", *(_line(did) for did in self.deliveries)]

    def _numbers(self) -> Counter[str]:
        return Counter(did.status for did in self.deliveries)


def _line(did: Did) -> str:
    where = did.topic if did.topic == did.destination else f"{did.topic} → {did.destination}"
    why = "" if did.reason is None else f", {did.reason}" + (f": {did.error}" if did.error else "")
    return f"  {did.message_id}  {where}  {did.status} (attempt {did.attempt}{why})"


class _Recording(Telemetry):
    """Telemetry that also keeps what was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[EndedAttempt] = []

    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        self.ended += ended
        super().settled(ended, seconds=seconds)


def one_pass(wanted: DaemonOptions, batch: int) -> Pass:
    """Take up to `batch` deliveries that are due, execute and settle them. The database must be migrated."""
    if (found := checked_app(wanted)) is None:
        raise CannotStart("there is no app to run", hint="pass --app module:attribute, or set TODOKU_APP")
    _, box = found
    configure_logging(wanted.log, level="warning", masked=box.settings.mask_fields)
    recording = box.telemetry = _Recording()
    try:
        check_migrated(box)  # a worker waits for its database; a pass does not
        box.drain(limit=batch)
    finally:
        box.close()
    return Pass(tuple(_did(one) for one in recording.ended))


def _did(one: EndedAttempt) -> Did:
    claim, settlement = one.claim, one.settlement
    return Did(
        claim.message_id,
        claim.topic,
        claim.destination,
        claim.attempt,
        settlement.status.value,
        settlement.reason,
        settlement.error,
    )
