"""What is watched: counters, latencies, spans, lines. Observed by the batch, because a call a message costs more than
its settle."""

from __future__ import annotations

import logging
import re
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, assert_never, cast

import msgspec

from todoku.core.decision import CONFLICT, Settlement
from todoku.core.errors import IdempotencyConflict
from todoku.core.message import Claimed, Draft, Message
from todoku.core.status import Status
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.contained_errors import log_failure, quietly
from todoku.engine.observability.exposition import observe_with, render
from todoku.engine.observability.gauges import Gauges
from todoku.engine.observability.log import LEVELS, Level, Log, SettledLine, least_level, log_lines
from todoku.engine.observability.message_headers import decoded
from todoku.engine.observability.metrics import Metrics, merged
from todoku.engine.observability.tracing import Spans, Tracing, configured
from todoku.store.leases import Reclaimed


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that ended. `started` and `ended` are this process's monotonic seconds."""

    claim: Claimed
    settlement: Settlement
    started: float
    ended: float
    error_type: str | None = None


class Telemetry:
    """What the engine tells about itself. Every method is cheap and never raises."""

    def __init__(
        self, metrics: Metrics | None = None, tracing: Tracing | None = None, *, span_ratio: float = 1.0
    ) -> None:
        self._span_ratio = span_ratio
        self.metrics = metrics or Metrics()
        self._tracing = tracing
        self._given = tracing is not None
        """Otherwise the application's own OpenTelemetry is looked for, which it may configure at any time."""
        self._bridged = False
        self._look_for_otel()

    # ---------------------------------------------------------------------------------------- publishing

    @quietly
    def published(self, drafts: Sequence[Draft], messages: Sequence[Message]) -> None:
        """These drafts are stored as these messages (inside a caller's transaction: if that commits)."""
        new = [draft for draft, message in zip(drafts, messages, strict=True) if not message.duplicate]
        add = self.metrics.add
        if new:
            add(counting.PUBLISHED, len(new), "ok")
            add(counting.ENQUEUED, sum(leg.dead is None for draft in new for leg in draft.legs))
            add(counting.LEDGER_WRITES, sum(draft.idempotency is not None for draft in new), "accepted")
            self._dead(leg.dead for draft in new for leg in draft.legs if leg.dead is not None)
        if len(new) < len(drafts):
            add(counting.PUBLISHED, len(drafts) - len(new), "duplicate")

    @quietly
    def publish_failed(self, error: BaseException, number: int = 1) -> None:
        """So many messages could not be published."""
        conflict = isinstance(error, IdempotencyConflict)
        self.metrics.add(counting.PUBLISHED, number, "conflict" if conflict else "error")
        if conflict:
            self.metrics.add(counting.CONFLICTS)

    @quietly
    def kept(self, state: str) -> None:
        """An entry of the ledger was written, by somebody who does something once."""
        self.metrics.add(counting.LEDGER_WRITES, 1, state)

    @quietly
    def conflicted(self) -> None:
        """A key was used again, with another body."""
        self.metrics.add(counting.CONFLICTS)

    @quietly
    def fell_back(self, number: int = 1, *, mode: str = "best_effort") -> None:
        """So many messages could not be queued. `mode`: their caller went on without them, or as a client was told."""
        self.metrics.add(counting.FALLBACK, number, mode)

    @quietly
    def fired(self, fired: int, passed: int) -> None:
        """A schedule was due: so many slots were fired, so many had been missed and were passed over."""
        self.metrics.add(counting.SCHEDULE_FIRED, fired)
        self.metrics.add(counting.SCHEDULE_MISSED, passed)

    # ------------------------------------------------------------------------------------------ the line

    @quietly
    def claimed(self, claims: Sequence[Claimed], *, seconds: float) -> None:
        """A claim came back with these, after so many seconds."""
        self._look_for_otel()
        if claims:
            self.metrics.add(counting.CLAIMED, len(claims))
            self.metrics.observe(counting.LATENCY, [seconds * 1000], "claim")

    @quietly
    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        """These were settled, in a transaction of so many seconds."""
        if not ended:
            return
        now = time.time()
        self._count(ended, now)
        self.metrics.observe(counting.LATENCY, [seconds * 1000], "commit")
        least = least_level()
        if least is None:
            return
        if least > logging.INFO:
            ended = [one for one in ended if LEVELS[_level(one.settlement)] >= least]
        at = datetime.fromtimestamp(now, UTC)
        log_lines([_line(one, at) for one in ended])

    def _count(self, ended: Sequence[EndedAttempt], now: float) -> None:
        metrics = self.metrics
        failed = [one for one in ended if one.settlement.status is not Status.SUCCEEDED]
        done = ended if not failed else [one for one in ended if one.settlement.status is Status.SUCCEEDED]
        if done:
            metrics.add(counting.PROCESSED, len(done), "done")
            # Since when somebody waits: its schedule or its replay, not the hour it was written in; if it was retried,
            # its publication, because the waits between attempts are waits too.
            dues = [one.claim.next_run_at if one.claim.attempt == 1 else one.claim.created_at for one in done]
            metrics.observe(counting.END_TO_END, [now - due for due in dues])
        if failed:
            self._count_failed(failed)
        metrics.observe(counting.LATENCY, [(one.ended - one.started) * 1000 for one in ended], "send")
        if again := [one.claim.attempt for one in ended if one.claim.attempt > 1]:
            for attempt, number in Counter(again).items():
                metrics.add(counting.RETRIED, number, str(attempt) if attempt < _MANY else f"{_MANY}+")
        if keyed := [one.settlement for one in ended if one.claim.key_hash is not None]:
            self._count_ledger(keyed)

    def _count_failed(self, failed: Sequence[EndedAttempt]) -> None:
        for outcome, number in Counter(outcome_name(one.settlement) for one in failed).items():
            self.metrics.add(counting.PROCESSED, number, outcome)
            if outcome == "retry":
                self.metrics.add(counting.RETRY_SCHEDULED, number)
        self._dead(one.settlement.reason or "" for one in failed if one.settlement.status is Status.ABORTED)

    def _count_ledger(self, settlements: Sequence[Settlement]) -> None:
        conflicts = sum(one.reason == CONFLICT.reason for one in settlements)
        succeeded = sum(one.status is Status.SUCCEEDED for one in settlements)
        failed = sum(one.status is Status.ABORTED for one in settlements) - conflicts
        self.metrics.add(counting.LEDGER_WRITES, succeeded, "succeeded")
        self.metrics.add(counting.LEDGER_WRITES, failed, "failed")
        self.metrics.add(counting.CONFLICTS, conflicts)

    def _dead(self, reasons: Iterable[str]) -> None:
        for reason, number in Counter(reasons).items():
            self.metrics.add(counting.TERMINAL_FAILED, number, reason)

    @quietly
    def lost(self, claims: Sequence[Claimed]) -> None:
        """These were not ours any more when they were to be settled."""
        if claims:
            self.metrics.add(counting.PROCESSED, len(claims), "lost")
            Log(worker=claims[0].worker).warning("LOST", number=len(claims), outbox_ids=[c.id for c in claims[:_SOME]])

    @quietly
    def reclaimed(self, found: Reclaimed) -> None:
        """A reclaim found this."""
        if found.freed or found.aborted:
            self.metrics.add(counting.LEASE_EXPIRED, found.freed + found.aborted)
        if found.aborted:
            self.metrics.add(counting.TERMINAL_FAILED, found.aborted, "WORKER_LOST")

    @quietly
    def expired(self, late: int, unknown: int) -> None:
        """So many waited past their `expires_at`; so many were for destinations that nobody registers."""
        for number, reason in ((late, "EXPIRED"), (unknown, "UNKNOWN_DESTINATION")):
            if number:
                self.metrics.add(counting.TERMINAL_FAILED, number, reason)

    # --------------------------------------------------------------------------------------------- spans

    def begin(self, claim: Claimed, *, send: bool) -> Any:
        """Begin the spans of an attempt, current in this task until `leave` or `end`; None if nobody traces."""
        if self._tracing is None:
            return None
        try:  # as `quietly`, without its calls: this is in the way of every attempt
            return self._tracing.begin(claim, send=send)
        except Exception as error:  # noqa: BLE001 - samplers and propagators are other people's code
            log_failure("begin", error)
            return None

    def leave(self, token: Any) -> None:
        """The handler has returned: called in the task that called `begin`, before it takes up anything else."""
        if token is not None and self._tracing is not None:
            self._tracing.leave(token)

    def end(self, token: Any, ended: EndedAttempt, *, lost: bool = False) -> None:
        """End the spans that `begin` began, once it is settled, or `lost`: not ours any more. From any task."""
        if token is None or self._tracing is None:
            return
        self._tracing.leave(token)
        if token.sampled:
            self._end(self._tracing, token, ended, "lost" if lost else outcome_name(ended.settlement))

    @quietly
    def _end(self, tracing: Tracing, token: Spans, ended: EndedAttempt, outcome: str) -> None:
        tracing.end(
            token,
            outcome=outcome,
            reason=ended.settlement.reason,
            error_type=ended.error_type,
            seconds=ended.ended - ended.started,
            ago=max(0.0, time.monotonic() - ended.ended),
        )

    def carried(self, token: Any, headers: dict[str, str]) -> dict[str, str]:
        """The headers of a message as it leaves for its destination: with the trace of this send, if there is one."""
        if token is None or self._tracing is None:
            return headers
        return self._carried(self._tracing, token, headers) or headers

    @quietly
    def _carried(self, tracing: Tracing, token: Spans, headers: dict[str, str]) -> dict[str, str]:
        return tracing.carried(token, headers)

    def _look_for_otel(self) -> None:
        """Take up what the application has configured since the last claim."""
        if not self._given:
            self._tracing = configured(self._tracing, self._span_ratio)
        if not self._bridged and (otel := sys.modules.get("opentelemetry.metrics")) is not None:
            self._bridged = True
            ours = weakref.ref(self.metrics)  # OpenTelemetry keeps its instruments for ever, an App may end before
            observe_with(otel.get_meter("todoku"), lambda: merged([now.dump()] if (now := ours()) is not None else []))

    # ------------------------------------------------------------------------------------------- showing

    def dump(self) -> bytes:
        """This process's numbers, for its supervisor to add up."""
        return self.metrics.dump()

    def render(self, extra: Sequence[bytes] = (), gauges: Gauges | None = None) -> bytes:
        """This process's numbers and those of others, as Prometheus reads them."""
        return render([self.metrics.dump(), *extra], gauges)


_MANY: Final = 10
"""Attempts from this one on are counted together: a label has few values."""

_SOME: Final = 20


def outcome_name(settlement: Settlement) -> str:
    """What an attempt came to, as metrics and spans call it. A Retry with no attempts left is an `abort`."""
    match settlement.status:
        case Status.SUCCEEDED:
            return "done"
        case Status.FAILED:
            return "retry"
        case Status.ABORTED:
            return "abort"
        case Status.PENDING | Status.SENDING:
            return "snooze"
        case _:
            assert_never(settlement.status)


# -------------------------------------------------------------------------------------------- the log line

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_LONGEST_ID: Final = 128
_LEVELS: Final[dict[str, Level]] = {"done": "info", "snooze": "info", "retry": "warning", "abort": "error"}


def _level(settlement: Settlement) -> Level:
    return _LEVELS[outcome_name(settlement)]


def _line(ended: EndedAttempt, at: datetime) -> SettledLine:
    claim, settlement = ended.claim, ended.settlement
    correlation, trace = _ids(claim.headers) if claim.headers is not None else (None, None)
    return SettledLine(
        "settled",
        at,
        _level(settlement),
        correlation,
        trace,
        claim.message_id,
        claim.id,
        claim.topic,
        claim.destination,
        cast("Any", settlement.status.value),
        claim.attempt,
        settlement.reason,
        ended.error_type,
        claim.key_hash,
        round((ended.ended - ended.started) * 1000, 3),
        claim.worker,
    )


def _ids(headers: str) -> tuple[str | None, str | None]:
    """(correlation id, trace id) of a message's headers."""
    found = decoded(headers)
    correlation = found.get("x-correlation-id") or found.get("correlation_id")
    trace = _TRACEPARENT.fullmatch(found.get("traceparent", ""))
    return correlation[:_LONGEST_ID] if correlation else None, trace[1] if trace else None
