"""Telemetry of the engine: counters, latencies, spans and log lines. Recorded in batches, because one call per message
would cost more than its settle."""

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

from todoku.core.decision import CONFLICT, SUCCEEDED, Settlement
from todoku.core.errors import IdempotencyConflict
from todoku.core.message import Alike, Claimed, Draft, Message
from todoku.core.outcome import Traceback
from todoku.core.status import Status
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.exposition import Gauges, observe_with, render
from todoku.engine.observability.log import LEVELS, Log, log_lines, lowest_level
from todoku.engine.observability.log_line import BoundLine, Fields, Level, SettledLine
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.engine.observability.metrics import Metrics, log_failure, merge, quietly
from todoku.engine.observability.tracing import Spans, Tracing, find_tracing
from todoku.store.leases import Reclaimed


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that ended. `started` and `ended` are this process's monotonic seconds."""

    claim: Claimed
    settlement: Settlement
    started: float
    ended: float
    error_type: str | None = None
    bound: Fields | None = None
    """Fields that its handler bound to `ctx.log`, for the log line."""


class Telemetry:
    """Metrics, spans and log lines of the engine. Every method is cheap and never raises."""

    def __init__(
        self, metrics: Metrics | None = None, tracing: Tracing | None = None, *, span_ratio: float = 1.0
    ) -> None:
        self._span_ratio = span_ratio
        self.metrics = metrics or Metrics()
        self._tracing = tracing
        self._is_given = tracing is not None
        """Whether tracing was passed in. If not, the application's OpenTelemetry is used, which it may configure at any
        time."""
        self._bridged = False
        self._connect_otel()

    # ---------------------------------------------------------------------------------------- publishing

    @quietly
    def published(self, drafts: Sequence[Draft], messages: Sequence[Message]) -> None:
        """Counts drafts that were stored as messages; in a caller's transaction, also if it rolls back later."""
        new = [draft for draft, message in zip(drafts, messages, strict=True) if not message.duplicate]
        add = self.metrics.add
        if new:
            add(counting.PUBLISHED, len(new), "ok")
            reasons = [leg.dead for draft in new for leg in draft.legs]
            dead = [reason for reason in reasons if reason is not None]
            add(counting.ENQUEUED, len(reasons) - len(dead))
            add(counting.LEDGER_WRITES, len([draft for draft in new if draft.idempotency is not None]), "accepted")
            if dead:
                self._count_dead(dead)
        if len(new) < len(drafts):
            add(counting.PUBLISHED, len(drafts) - len(new), "duplicate")

    @quietly
    def published_alike(self, alike: Alike) -> None:
        """Counts messages that were stored, none of which has a key."""
        number, legs = len(alike.ids), alike.draft.legs
        dead = [leg.dead for leg in legs if leg.dead is not None] * number
        self.metrics.add(counting.PUBLISHED, number, "ok")
        self.metrics.add(counting.ENQUEUED, number * len(legs) - len(dead))
        self._count_dead(dead)

    @quietly
    def captured(self, drafts: Sequence[Draft]) -> None:
        """Counts drafts of captured changes, which are never duplicates; staged ones also if they are staged again."""
        self.metrics.add(counting.PUBLISHED, len(drafts), "ok")
        self.metrics.add(counting.ENQUEUED, sum(leg.dead is None for draft in drafts for leg in draft.legs))
        self._count_dead(leg.dead for draft in drafts for leg in draft.legs if leg.dead is not None)

    @quietly
    def publish_failed(self, error: BaseException, number: int = 1) -> None:
        """Counts messages that could not be published."""
        conflict = isinstance(error, IdempotencyConflict)
        self.metrics.add(counting.PUBLISHED, number, "conflict" if conflict else "error")
        if conflict:
            self.metrics.add(counting.CONFLICTS)

    @quietly
    def taken(self, *, duplicate: bool) -> None:
        """Counts a message that a remote queue has taken."""
        self.metrics.add(counting.PUBLISHED, 1, "duplicate" if duplicate else "ok")

    @quietly
    def kept(self, state: str) -> None:
        """Counts a ledger entry that the application wrote (`App.once`)."""
        self.metrics.add(counting.LEDGER_WRITES, 1, state)

    @quietly
    def conflicted(self) -> None:
        """Counts a key that was used again with another body."""
        self.metrics.add(counting.CONFLICTS)

    @quietly
    def fell_back(self, number: int = 1, *, mode: str = "best_effort") -> None:
        """Counts messages that could not be queued. `mode`: the fallback that was used instead."""
        self.metrics.add(counting.FALLBACK, number, mode)

    @quietly
    def fired(self, fired: int, passed: int) -> None:
        """Counts the slots of a schedule that were fired, and those that had been missed and were skipped."""
        self.metrics.add(counting.SCHEDULE_FIRED, fired)
        self.metrics.add(counting.SCHEDULE_MISSED, passed)

    @quietly
    def signalled(self) -> None:
        """Counts a signal to a workflow run; in a caller's transaction, also if it rolls back later."""
        self.metrics.add(counting.FLOW_SIGNALS, 1, "sent")

    # ----------------------------------------------------------------------------------- claim and settle

    @quietly
    def claimed(self, claims: Sequence[Claimed], *, seconds: float) -> None:
        """Counts claimed deliveries, and the duration of the claim."""
        self._connect_otel()
        if claims:
            self.metrics.add(counting.CLAIMED, len(claims))
            self.metrics.observe(counting.LATENCY, [seconds * 1000], "claim")

    @quietly
    def settled(self, ended: Sequence[EndedAttempt], *, seconds: float) -> None:
        """Counts and logs settled attempts, and counts the duration of their transaction."""
        if not ended:
            return
        now = time.time()
        self._count(ended, now)
        self.metrics.observe(counting.LATENCY, [seconds * 1000], "commit")
        least = lowest_level()
        if least is None:
            return
        if least > logging.INFO:  # most attempts succeed, and are recognised without asking for their level
            failed = [one for one in ended if one.settlement is not SUCCEEDED]
            ended = [one for one in failed if LEVELS[_level(one.settlement)] >= least]
        at = datetime.fromtimestamp(now, UTC)
        log_lines([_line(one, at) for one in ended])
        for one in ended:
            if one.settlement.traceback is not None:
                self._log_traceback(one, one.settlement.traceback)

    def _log_traceback(self, ended: EndedAttempt, trace: Traceback) -> None:
        """Logs where an attempt failed, on a line of its own, because the attempt's line has fixed fields."""
        claim, settlement = ended.claim, ended.settlement
        correlation, _ = _ids(claim.headers) if claim.headers is not None else (None, None)
        log = Log(
            correlation_id=correlation, message_id=claim.message_id, outbox_id=claim.id, topic=claim.topic,
            adapter=claim.destination, attempts=claim.attempt, reason_code=settlement.reason,
            error_type=ended.error_type, fingerprint=trace.fingerprint, traceback=trace.frames,
        )  # fmt: skip
        (log.error if settlement.status is Status.ABORTED else log.warning)("TRACEBACK")

    def _count(self, ended: Sequence[EndedAttempt], now: float) -> None:
        metrics = self.metrics
        failed = [one for one in ended if one.settlement.status is not Status.SUCCEEDED]
        done = ended if not failed else [one for one in ended if one.settlement.status is Status.SUCCEEDED]
        if done:
            metrics.add(counting.PROCESSED, len(done), "done")
            # From the due time, which may be that of a schedule or a replay; if it was retried, from its publication,
            # because the waits between attempts count, too.
            dues = [one.claim.next_run_at if one.claim.attempt == 1 else one.claim.created_at for one in done]
            metrics.observe(counting.END_TO_END, [now - due for due in dues])
        if failed:
            self._count_failed(failed)
        metrics.observe(counting.LATENCY, [(one.ended - one.started) * 1000 for one in ended], "send")
        if again := [one.claim.attempt for one in ended if one.claim.attempt > 1]:
            for attempt, number in Counter(again).items():
                metrics.add(
                    counting.RETRIED,
                    number,
                    str(attempt) if attempt < _MANY else f"{_MANY}+",
                )
        if keyed := [one.settlement for one in ended if one.claim.key_hash is not None]:
            self._count_ledger(keyed)

    def _count_failed(self, failed: Sequence[EndedAttempt]) -> None:
        for outcome, number in Counter(outcome_name(one.settlement) for one in failed).items():
            self.metrics.add(counting.PROCESSED, number, outcome)
            if outcome == "retry":
                self.metrics.add(counting.RETRY_SCHEDULED, number)
        self._count_dead(one.settlement.reason or "" for one in failed if one.settlement.status is Status.ABORTED)

    def _count_ledger(self, settlements: Sequence[Settlement]) -> None:
        conflicts = sum(one.reason == CONFLICT.reason for one in settlements)
        succeeded = sum(one.status is Status.SUCCEEDED for one in settlements)
        failed = sum(one.status is Status.ABORTED for one in settlements) - conflicts
        self.metrics.add(counting.LEDGER_WRITES, succeeded, "succeeded")
        self.metrics.add(counting.LEDGER_WRITES, failed, "failed")
        self.metrics.add(counting.CONFLICTS, conflicts)

    def _count_dead(self, reasons: Iterable[str]) -> None:
        for reason, number in Counter(reasons).items():
            self.metrics.add(counting.TERMINAL_FAILED, number, reason)

    @quietly
    def lost(self, claims: Sequence[Claimed]) -> None:
        """Counts and logs deliveries that this worker had lost before it could settle them."""
        if claims:
            self.metrics.add(counting.PROCESSED, len(claims), "lost")
            Log(worker=claims[0].worker).warning(
                "LOST", number=len(claims), outbox_ids=[c.id for c in claims[:_MAX_IDS]]
            )

    @quietly
    def reclaimed(self, found: Reclaimed) -> None:
        """Counts the deliveries that a reclaim freed or aborted."""
        if found.freed or found.aborted:
            self.metrics.add(counting.LEASE_EXPIRED, found.freed + found.aborted)
        if found.aborted:
            self.metrics.add(counting.TERMINAL_FAILED, found.aborted, "WORKER_LOST")

    @quietly
    def expired(self, late: int, unknown: int) -> None:
        """Counts deliveries that became dead letters: past their `expires_at`, or to an unknown destination."""
        for number, reason in ((late, "EXPIRED"), (unknown, "UNKNOWN_DESTINATION")):
            if number:
                self.metrics.add(counting.TERMINAL_FAILED, number, reason)

    # --------------------------------------------------------------------------------------------- spans

    def begin(self, claim: Claimed, *, send: bool) -> Any:
        """Begins the spans of an attempt, current in this task until `leave` or `end`; None if it is not traced."""
        if self._tracing is None:
            return None
        try:  # as `quietly`, without its extra call: this runs for every attempt
            return self._tracing.begin(claim, send=send)
        except Exception as error:  # noqa: BLE001 - samplers and propagators are third-party code
            log_failure("begin", error)
            return None

    def leave(self, token: Any) -> None:
        """Makes the spans of `begin` not current. Called in the same task, right after the handler has returned."""
        if token is not None and self._tracing is not None:
            self._tracing.leave(token)

    def end(self, token: Any, ended: EndedAttempt, *, lost: bool = False) -> None:
        """Ends the spans of an attempt that was settled, or `lost` to another worker. May be called from any task."""
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

    def with_trace(self, token: Any, headers: dict[str, str]) -> dict[str, str]:
        """Returns the headers of an outgoing message, with the trace context of this send if there is one."""
        if token is None or self._tracing is None:
            return headers
        return self._carried(self._tracing, token, headers) or headers

    @quietly
    def _carried(self, tracing: Tracing, token: Spans, headers: dict[str, str]) -> dict[str, str]:
        return tracing.with_trace(token, headers)

    def _connect_otel(self) -> None:
        """Connects to the OpenTelemetry that the application has configured since the last claim."""
        if not self._is_given:
            self._tracing = find_tracing(self._tracing, self._span_ratio)
        if not self._bridged and (otel := sys.modules.get("opentelemetry.metrics")) is not None:
            self._bridged = True
            ours = weakref.ref(self.metrics)  # OpenTelemetry never drops its instruments, an App may end
            observe_with(otel.get_meter("todoku"), lambda: merge([now.dump()] if (now := ours()) is not None else []))

    # -------------------------------------------------------------------------------------------- export

    def dump(self) -> bytes:
        """Returns this process's metrics, encoded for its supervisor."""
        return self.metrics.dump()

    def render(self, extra: Sequence[bytes] = (), gauges: Gauges | None = None) -> bytes:
        """Returns the sum of this process's metrics and those of others, in Prometheus's text format."""
        return render([self.metrics.dump(), *extra], gauges)


_MANY: Final = 10
"""Attempt numbers from this one on share one label value."""

_MAX_IDS: Final = 20


def outcome_name(settlement: Settlement) -> str:
    """Returns the outcome as metrics and spans name it. A Retry without attempts left is an `abort`."""
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
_LEVELS: Final[dict[str, Level]] = {"done": "info", "snooze": "info", "retry": "warning", "abort": "error"}


def _level(settlement: Settlement) -> Level:
    return _LEVELS[outcome_name(settlement)]


def _line(ended: EndedAttempt, at: datetime) -> SettledLine | BoundLine:
    claim, settlement = ended.claim, ended.settlement
    correlation, trace = _ids(claim.headers) if claim.headers is not None else (None, None)
    is_plain = settlement is SUCCEEDED  # nearly all: its names need not be looked up
    line = SettledLine(
        "settled",
        at,
        "info" if is_plain else _level(settlement),
        correlation,
        trace,
        claim.message_id,
        claim.id,
        claim.topic,
        claim.destination,
        "succeeded" if is_plain else cast("Any", settlement.status.value),
        claim.attempt,
        settlement.reason,
        ended.error_type,
        claim.key_hash,
        round((ended.ended - ended.started) * 1000, 3),
        claim.worker,
    )
    return line if ended.bound is None else BoundLine(line, ended.bound)


def _ids(headers: str) -> tuple[str | None, str | None]:
    """Returns (correlation id, trace id) from a message's headers."""
    found = decode_headers(headers)
    trace = _TRACEPARENT.fullmatch(found.get("traceparent", ""))
    return correlation_id(found), trace[1] if trace else None
