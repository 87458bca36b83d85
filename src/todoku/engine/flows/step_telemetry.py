"""What one attempt of a run tells of its steps: counts, spans and log lines. It never raises.

Counts are kept here, and added to those of the process when the attempt ends, or once a second: adding each would cost
more than telling what happened.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal

from todoku.core.flow import UNDO_TOPIC, WAITS_FOR, StepKind, StepRow, WaitsFor
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Snooze
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import Log
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.engine.observability.metrics import Metrics, quietly
from todoku.engine.observability.step_span import OpenSpan, RunSpans, find_run_spans

if TYPE_CHECKING:
    from todoku.engine.flows.run import Asked

StepOutcome = Literal["done", "failed", "retried", "given_up", "lost", "stopped"]
"""`failed`: its exception is the run's. `retried`, `given_up`: of a step with attempts of its own. `lost`: the worker
does not own the run any more. `stopped`: the attempt ended while it ran, by a timeout, a cancellation or a shutdown."""

_EVERY: Final = 1.0
"""Seconds after which an attempt that goes on adds its counts."""

_LINES: Final[dict[StepOutcome, str]] = {
    "failed": "STEP_FAILED", "retried": "STEP_RETRIED", "given_up": "STEP_GIVEN_UP",
}  # fmt: skip
"""The log line of a step that has not succeeded. The worker logs by itself that it lost or stopped an attempt."""


class StepTelemetry:
    """The telemetry of one attempt of a run. It belongs to one event loop."""

    def __init__(self, claim: Claimed, metrics: Metrics) -> None:
        self.claim = claim
        self.spans: RunSpans | None = None
        self.is_lost = False
        """Whether the worker has found out that it does not own the run any more."""
        self._metrics = metrics
        self._is_undo = claim.topic == UNDO_TOPIC
        self._steps: Counter[tuple[str, str]] = Counter()
        self._took: list[float] = []
        self._added_at = time.monotonic()
        self._last_began = 0.0
        """When the newest step of earlier attempts began, in Unix time."""

    @quietly
    def begun(self, rows: Collection[StepRow]) -> None:
        """The attempt begins, with the steps of earlier ones. Called where the span of the attempt is current."""
        self.spans, claim = find_run_spans(), self.claim
        if self.spans is not None:
            self._last_began = max((row.started for row in rows), default=0.0)
        if claim.attempt > 1 or claim.lost:  # the attempt before failed, or was lost; after a park none is counted
            return
        waits = [row.started for row in rows if row.state == "open" and _waits(row) is not None]
        if waits:
            self._metrics.add(counting.FLOW_WOKEN)
            if self.spans is not None:
                self.spans.event("woken", {"waited_seconds": round(max(time.time() - max(waits), 0.0), 3)})
        elif self._is_undo and not claim.replay_count and not rows:
            self._metrics.add(counting.FLOW_UNDOS, 1, "begun")

    def step(self, asked: Asked, rows: Mapping[str, StepRow], kind: StepKind = "step") -> StepAttempt:
        """Watches one attempt of a step, as a `with` block around it. `rows`: of the run; they tell how it ended."""
        return StepAttempt(self, asked, rows, "undo" if self._is_undo and kind == "step" else kind)

    def count(self, kind: str, outcome: StepOutcome, took: float | None = None) -> None:
        """Counts a step, and how long its function took."""
        self._steps[kind, outcome] += 1
        if took is not None:
            self._took.append(took)
        if (now := time.monotonic()) - self._added_at >= _EVERY:
            self._added_at = now
            self.add_counts()

    @quietly
    def add_counts(self) -> None:
        """Adds the counts of this attempt to those of the process."""
        steps, self._steps = self._steps, Counter()
        took, self._took = self._took, []
        for (kind, outcome), number in steps.items():
            self._metrics.add(counting.FLOW_STEPS, number, f"{kind},{outcome}")
        self._metrics.observe(counting.FLOW_STEP_SECONDS, took)

    # -------------------------------------------------------------------------------------- waits and parks

    @quietly
    def waited(self, row: StepRow) -> None:
        """A wait of the run is over: for a signal, or for children."""
        outcome: StepOutcome = "given_up" if row.state == "failed" else "done"
        if row.kind == "wait" and outcome == "done":
            self._metrics.add(counting.FLOW_SIGNALS, 1, "taken")
        self.count(row.kind, outcome)
        self._write_span(row, outcome)

    def slept(self, row: StepRow) -> None:
        """A sleep begins. It is counted now: nothing is stored when it is over."""
        self.count(row.kind, "done")

    def woke(self, row: StepRow, seconds: float) -> None:
        """The run goes past a sleep. The first time it has a span: then nothing of the run has begun since its end."""
        if self.spans is not None and row.started + seconds >= self._last_began:
            self._write_span(row, "done")

    def _write_span(self, row: StepRow, outcome: StepOutcome) -> None:
        if self.spans is not None:
            attributes: dict[str, str | int] = {
                "step": row.name, "step.kind": row.kind, "step.number": row.number, "outcome": outcome,
            }  # fmt: skip
            self.spans.waited(f"flow.{row.kind}", attributes, row.started)

    @quietly
    def parked(self, waiting: Iterable[tuple[float, StepRow]]) -> None:
        """The run parks. `waiting`: the open steps that it has come to, with the seconds that each still waits."""
        found = [
            (left, what, row.number, row)
            for left, row in waiting
            if left > 0 and row.state == "open" and (what := _waits(row)) is not None
        ]
        if not found:
            return
        left, what, number, row = min(found, key=lambda each: each[:3])
        self._metrics.add(counting.FLOW_PARKED, 1, what)
        if self.spans is None:
            return
        attributes: dict[str, str | int] = {"waits_for": what, "step": row.name, "step.number": number}
        if not math.isinf(left):
            attributes["until"] = datetime.fromtimestamp(time.time() + left, UTC).isoformat()
        if what == "signal" and row.awaits is not None:
            attributes["signal"] = row.awaits
        self.spans.event("parked", attributes)

    @quietly
    def undone(self) -> None:
        """Everything of the run was undone."""
        self._metrics.add(counting.FLOW_UNDOS, 1, "done")


class StepAttempt:
    """One attempt of a step, while it is made."""

    __slots__ = ("_asked", "_began", "_kind", "_of", "_rows", "_span")

    def __init__(self, of: StepTelemetry, asked: Asked, rows: Mapping[str, StepRow], kind: str) -> None:
        self._of = of
        self._asked = asked
        self._rows = rows
        self._kind = kind
        self._span: OpenSpan | None = None
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if self._of.spans is not None:
            name = f"flow.step {self._asked.name}" if self._kind in ("step", "undo") else f"flow.{self._kind}"
            self._span = self._of.spans.begin(name, self._attributes())

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        took, row = time.monotonic() - self._began, self._rows.get(self._asked.key)
        is_done = error is None and row is not None and row.state == "done"
        outcome = "done" if is_done else _outcome(row, error, is_lost=self._of.is_lost)
        self._of.count(self._kind, outcome, took if self._kind in ("step", "undo") else None)
        if is_done and self._span is None:  # most steps, where nobody traces
            return
        error_type = None if outcome == "done" else _error_type(row, error)
        if self._span is not None:
            found = {"outcome": outcome, "error.type": error_type}
            self._span.end(
                {name: value for name, value in found.items() if value is not None},
                failed=outcome in ("failed", "given_up", "lost"),
            )
        if outcome in _LINES and not isinstance(error, Snooze):
            self._log(outcome, error_type, took)

    def _attributes(self) -> dict[str, str | int]:
        asked = self._asked
        before = self._rows.get(asked.key) or asked.row
        place, _, occurrence = asked.key.removeprefix(f"{asked.name}:").partition("#")
        found: dict[str, str | int] = {
            "step": asked.name, "step.kind": self._kind, "step.number": asked.number,
            "step.attempt": 1 if before is None else before.attempts + 1,
        }  # fmt: skip
        if not place.startswith("="):  # a key that the workflow chose may contain what no span may
            found |= {"step.key": asked.key, "step.occurrence": int(occurrence or 0)}
        return found

    @quietly
    def _log(self, outcome: StepOutcome, error_type: str | None, took: float) -> None:
        claim, asked = self._of.claim, self._asked
        row = self._rows.get(asked.key)
        log = Log(
            correlation_id=correlation_id(decode_headers(claim.headers)), message_id=claim.message_id,
            outbox_id=claim.id, topic=claim.topic, adapter=claim.destination, step=asked.name, number=asked.number,
            attempts=claim.attempt if outcome == "failed" or row is None else row.attempts, error_type=error_type,
            latency_ms=round(took * 1000, 3),
        )  # fmt: skip
        (log.error if outcome == "given_up" else log.warning)(_LINES[outcome])


def _waits(row: StepRow) -> WaitsFor | None:
    """What an open step waits for; None: it does not wait."""
    return None if row.kind == "step" and row.wait is None else WAITS_FOR.get(row.kind)


def _outcome(row: StepRow | None, error: BaseException | None, *, is_lost: bool) -> StepOutcome:
    match error:
        case None:
            return "given_up" if row is not None and row.state == "failed" else "retried"
        case Abort():
            return "given_up"
        case Snooze():
            return "retried"
        case Exception():
            return "failed"
        case _:
            return "lost" if is_lost else "stopped"


def _error_type(row: StepRow | None, error: BaseException | None) -> str | None:
    """The type of what the step raised: of a step with attempts of its own, from the error that is stored."""
    if error is not None:
        return type(error).__name__ if isinstance(error, Exception) else None
    return None if row is None or row.error is None else row.error.partition(":")[0]
