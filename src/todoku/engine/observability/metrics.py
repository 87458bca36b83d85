"""The metrics: their definitions, how they are summed over processes, and retained when a process dies.

They are counted here and not by prometheus-client, where an observation costs about a microsecond: here whole batches
are added at once, and the metrics of a process are a few hundred bytes that fit through a pipe (decision 8).
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import msgspec

from todoku.engine.observability.log import Log

# ------------------------------------------------------------
# Errors of telemetry are logged by their type, and never raised into the code that is observed.

P = ParamSpec("P")
R = TypeVar("R")


def quietly(call: Callable[P, R]) -> Callable[P, R | None]:
    """Decorates a telemetry function: an exception is logged by its type, and None returned."""

    @wraps(call)
    def watched(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - exporters and samplers are third-party code
            log_failure(call.__name__, error)
            return None

    return watched


def log_failure(call: str, error: Exception) -> None:
    """Logs that `call` failed, without the error's text, which may quote a payload."""
    Log().debug("TELEMETRY_FAILED", call=call, error_type=type(error).__name__)


T = TypeVar("T")

MOST_LABELS: Final = 64
"""Values of one label; further values are counted as OTHER, because handlers may invent reasons."""

OTHER: Final = "OTHER"


class Counter(msgspec.Struct, frozen=True):
    """A counter. `known`: label values that are exported as 0 before they occur.

    Several labels are stored as one: their names, and their values, joined by commas.
    """

    name: str
    help: str
    label: str | None = None
    known: tuple[str, ...] = ()


class Histogram(msgspec.Struct, frozen=True):
    """A histogram; `edges` are the upper bounds of its buckets."""

    name: str
    help: str
    edges: tuple[float, ...]
    label: str | None = None
    known: tuple[str, ...] = ()


ENQUEUED: Final = Counter("outbox_enqueued_total", "Deliveries queued by publishing.")
CLAIMED: Final = Counter("outbox_claimed_total", "Deliveries claimed by workers.")
PROCESSED: Final = Counter(
    "outbox_processed_total",
    "Attempts settled, by outcome.",
    "outcome",
    ("done", "retry", "abort", "snooze", "lost"),
)
RETRIED: Final = Counter("outbox_retry_total", "Settled attempts after the first one, by attempt number.", "attempt")
RETRY_SCHEDULED: Final = Counter("outbox_retry_scheduled_total", "Failed attempts that will be retried.")
TERMINAL_FAILED: Final = Counter(
    "outbox_terminal_failed_total",
    "Deliveries that became dead letters.",
    "reason",
    # todoku's own reasons are exported as 0, so that the first one is a visible rise; handlers' appear when they occur
    ("BAD_PAYLOAD", "EXPIRED", "IDEMPOTENCY_CONFLICT", "INTERNAL_ERROR", "NO_ROUTE", "TIMEOUT", "UNKNOWN_DESTINATION",
     "WORKER_LOST"),
)  # fmt: skip
LEASE_EXPIRED: Final = Counter(
    "outbox_lock_lease_expired_total", "Deliveries reclaimed from workers whose lease had ended."
)
LEDGER_WRITES: Final = Counter(
    "idempo_ledger_writes_total", "Ledger entries written.", "status", ("accepted", "succeeded", "failed")
)
CONFLICTS: Final = Counter("idempotency_conflicts_total", "Idempotency keys that were used again with another body.")
PUBLISHED: Final = Counter(
    "outbox_publish_total", "Messages published.", "result", ("ok", "duplicate", "conflict", "error")
)
FALLBACK: Final = Counter(
    "queue_fallback_total",
    "Messages that could not be queued, by fallback.",
    "mode",
    ("best_effort", "raise", "sync", "spool"),
)
INGESTED: Final = Counter(
    "ingest_requests_total", "Requests to ingest, by source and status of the answer.", "source,status"
)
OLD_SECRET: Final = Counter(
    "ingest_old_secret_total", "Requests to ingest that were signed with an older secret of their source.", "source"
)
AUTH_FAILURES: Final = Counter(
    "api_auth_failures_total",
    "Requests refused because of their token, by status of the answer.",
    "status",
    ("401", "403", "429"),
)
SCHEDULE_FIRED: Final = Counter("schedule_fired_total", "Slots of schedules that were fired.")
SCHEDULE_MISSED: Final = Counter("schedule_missed_total", "Slots of schedules that were missed and skipped.")
FLOW_STEPS: Final = Counter(
    "flow_steps_total",
    "Steps of workflow runs that were run, by kind and outcome.",
    "kind,outcome",
    ("step,done", "step,failed", "step,retried", "step,given_up", "step,lost", "step,stopped", "undo,done",
     "undo,failed", "sleep,done", "wait,done", "wait,given_up", "children,done", "publish,done", "value,done"),
)  # fmt: skip
FLOW_SIGNALS: Final = Counter(
    "flow_signals_total", "Signals sent to workflow runs, and taken by their waits.", "state", ("sent", "taken")
)
FLOW_PARKED: Final = Counter(
    "flow_parked_total",
    "Times that a workflow run parked, by what it waited for.",
    "waits_for",
    ("sleep", "signal", "children", "retry"),
)
FLOW_WOKEN: Final = Counter("flow_woken_total", "Times that a parked workflow run went on.")
FLOW_UNDOS: Final = Counter(
    "flow_undos_total", "Undos of workflow runs that were begun, and that undid everything.", "state", ("begun", "done")
)

LATENCY: Final = Histogram(
    "outbox_latency_ms",
    "Milliseconds of a claim, an attempt, or a settling commit.",
    (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000),
    "phase",
    ("claim", "send", "commit"),
)
END_TO_END: Final = Histogram(
    "outbox_end_to_end_seconds",
    "Seconds from being due (or published, if it was retried) to success.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600),
)

COUNTERS: Final = (
    ENQUEUED, CLAIMED, PROCESSED, RETRIED, RETRY_SCHEDULED, TERMINAL_FAILED, LEASE_EXPIRED, LEDGER_WRITES, CONFLICTS,
    PUBLISHED, FALLBACK, SCHEDULE_FIRED, SCHEDULE_MISSED, INGESTED, OLD_SECRET,
    AUTH_FAILURES, FLOW_STEPS, FLOW_SIGNALS, FLOW_PARKED, FLOW_WOKEN, FLOW_UNDOS,
)  # fmt: skip
INGEST_SECONDS: Final = Histogram(
    "ingest_seconds",
    "Seconds from the arrival of a request to ingest to its answer.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FLOW_STEP_SECONDS: Final = Histogram(
    "flow_step_seconds",
    "Seconds from the call of a step's function until what it came to was stored.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600),
)
HISTOGRAMS: Final = (LATENCY, END_TO_END, INGEST_SECONDS, FLOW_STEP_SECONDS)


class HistogramBuckets(msgspec.Struct):
    """The values of a histogram: `up_to[i]` values were at most the i-th edge; `number` in all; `total` their sum."""

    up_to: list[int]
    number: int = 0
    total: float = 0.0

    def add(self, other: HistogramBuckets) -> None:
        """Adds the values of another process."""
        self.up_to = [mine + theirs for mine, theirs in zip(self.up_to, other.up_to, strict=True)]
        self.number += other.number
        self.total += other.total


class Snapshot(msgspec.Struct):
    """The metrics of one process, or the sum of several: by metric, then by label value ("": no label)."""

    counters: dict[str, dict[str, float]]
    histograms: dict[str, dict[str, HistogramBuckets]]

    def add(self, other: Snapshot) -> None:
        """Adds the metrics of another process."""
        for name, values in other.counters.items():
            mine = self.counters.setdefault(name, {})
            for label, number in values.items():
                mine[label] = mine.get(label, 0) + number
        for name, series in other.histograms.items():
            known = self.histograms.setdefault(name, {})
            for label, buckets in series.items():
                known.setdefault(label, HistogramBuckets([0] * len(buckets.up_to))).add(buckets)


def empty() -> Snapshot:
    """Returns every metric at 0."""
    return Snapshot(
        {counter.name: dict.fromkeys(_labels(counter), 0.0) for counter in COUNTERS},
        {
            histogram.name: {label: HistogramBuckets([0] * len(histogram.edges)) for label in _labels(histogram)}
            for histogram in HISTOGRAMS
        },
    )


def _labels(metric: Counter | Histogram) -> tuple[str, ...]:
    return metric.known if metric.label is not None else ("",)


_DECODER: Final = msgspec.msgpack.Decoder(Snapshot)


def merge(dumps: Iterable[bytes]) -> Snapshot:
    """Returns the sum of the metrics of several processes."""
    whole = empty()
    for dump in dumps:
        whole.add(_DECODER.decode(dump))
    return whole


class Metrics:
    """The metrics of this process. Methods may be called from any thread; a forked child starts at 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = empty()
        _instances.add(self)

    def add(self, counter: Counter, number: float = 1, label: str = "") -> None:
        """Raises a counter by `number`."""
        with self._lock:
            values = self._now.counters[counter.name]
            label = _bounded_label(label, values)
            values[label] = values.get(label, 0) + number

    def observe(self, histogram: Histogram, values: list[float], label: str = "") -> None:
        """Adds a batch of values to a histogram. Sorts the list in place, so that each edge takes one search."""
        if not values:
            return
        values.sort()
        with self._lock:
            buckets = self._now.histograms[histogram.name][label]
            up_to = buckets.up_to
            for place, edge in enumerate(histogram.edges):
                up_to[place] += bisect_right(values, edge)
            buckets.number += len(values)
            buckets.total += sum(values)

    def merge(self, other: Snapshot) -> None:
        """Adds what another process has counted."""
        with self._lock:
            self._now.add(other)

    def dump(self) -> bytes:
        """Returns all metrics, encoded for another process."""
        with self._lock:
            return msgspec.msgpack.encode(self._now)

    def clear(self) -> None:
        """Resets all metrics, in a forked child: its parent counts what it inherited."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._now = empty()


def _bounded_label(label: str, values: dict[str, T]) -> str:
    return label if label in values or len(values) < MOST_LABELS else OTHER


_instances: Final[weakref.WeakSet[Metrics]] = weakref.WeakSet()


def _clear_all() -> None:
    for metrics in list(_instances):
        metrics.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_clear_all)


class Children:
    """The metrics that a supervisor received from its children. Those of dead children stay: counters never fall.

    Thread-safe. The counts of a killed child after its last dump are lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, bytes] = {}
        self._dead: Snapshot | None = None

    def record(self, child: int, dump: bytes) -> None:
        """Stores the metrics that a living child (by pid) sent."""
        with self._lock:
            self._living[child] = dump

    def retire(self, child: int) -> None:
        """Adds the last metrics of a child that ended to those of dead children."""
        with self._lock:  # a scrape sees them among the living or among the dead, never in neither
            if (last := self._living.pop(child, None)) is not None:
                self._dead = merge([last] if self._dead is None else [msgspec.msgpack.encode(self._dead), last])

    def dumps(self) -> tuple[bytes, ...]:
        """Returns the metrics of all children, dead or alive."""
        with self._lock:
            dead = () if self._dead is None else (msgspec.msgpack.encode(self._dead),)
            return (*dead, *self._living.values())
