"""`todoku run --once`: one pass over the due deliveries, in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from todoku.core.errors import CannotStart
from todoku.daemon.start import DaemonOptions, check_migrated, load_named_app
from todoku.engine.observability.log import configure_logging
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry


class PassAttempt(msgspec.Struct, frozen=True):
    """One attempt of a pass."""

    message_id: str
    topic: str
    destination: str
    attempt: int
    status: str
    reason: str | None
    error: str | None


class PassResult(msgspec.Struct, frozen=True):
    """The attempts of one pass."""

    deliveries: tuple[PassAttempt, ...]

    def as_dict(self) -> dict[str, object]:
        """The result as a JSON object."""
        return {
            "settled": len(self.deliveries),
            **{status: self._count_by_status()[status] for status in ("succeeded", "failed", "aborted", "pending")},
            "deliveries": [msgspec.to_builtins(attempt) for attempt in self.deliveries],
        }

    def as_lines(self) -> list[str]:
        """One line for the pass, and one per attempt."""
        if not self.deliveries:
            return ["nothing was due"]
        numbers = ", ".join(f"{number} {status}" for status, number in self._count_by_status().most_common())
        return [f"{len(self.deliveries)} attempts: {numbers}", *(_line(attempt) for attempt in self.deliveries)]

    def _count_by_status(self) -> Counter[str]:
        return Counter(attempt.status for attempt in self.deliveries)


def _line(attempt: PassAttempt) -> str:
    where = attempt.topic if attempt.topic == attempt.destination else f"{attempt.topic} → {attempt.destination}"
    why = "" if attempt.reason is None else f", {attempt.reason}" + (f": {attempt.error}" if attempt.error else "")
    return f"  {attempt.message_id}  {where}  {attempt.status} (attempt {attempt.attempt}{why})"


class _Recording(Telemetry):
    """Telemetry that also collects the settled attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[EndedAttempt] = []

    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        self.ended += ended
        super().settled(ended, seconds=seconds)


def run_single_pass(options: DaemonOptions, batch: int) -> PassResult:
    """Claims up to `batch` due deliveries, executes and settles them. The database must be migrated."""
    if (found := load_named_app(options)) is None:
        raise CannotStart("there is no app to run", hint="pass --app module:attribute, or set TODOKU_APP")
    _, box = found
    configure_logging(options.log, level="warning", masked=box.settings.mask_fields)
    recording = box.telemetry = _Recording()
    try:
        check_migrated(box)  # a worker waits for its database, a single pass does not
        box.drain(limit=batch)
    finally:
        box.close()
    return PassResult(tuple(_pass_attempt(one) for one in recording.ended))


def _pass_attempt(one: EndedAttempt) -> PassAttempt:
    claim, settlement = one.claim, one.settlement
    return PassAttempt(
        claim.message_id,
        claim.topic,
        claim.destination,
        claim.attempt,
        settlement.status.value,
        settlement.reason,
        settlement.error,
    )
