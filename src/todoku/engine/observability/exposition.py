"""Exports the metrics to Prometheus and to OpenTelemetry. Both are optional."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from todoku.engine.observability.metrics import COUNTERS, HISTOGRAMS, Snapshot, merge

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client.core import Metric
import threading
import time

import msgspec

from todoku.core.errors import StoreError
from todoku.core.flow import WaitsFor
from todoku.store.captures import CaptureRow
from todoku.store.projections import ProjectionRow
from todoku.store.store import Store

# ------------------------------------------------------------
# The gauges, read from the database by the process that serves /metrics: lag, age, in flight, stuck, dead letters.


class ProjectionGauges(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges of one projection; `copied`, `expected` and `rejected` are those of a rebuild that is under way."""

    name: str
    lag_events: int
    oldest_age_seconds: float
    stopped: bool
    copied: int = 0
    expected: int = 0
    rejected: int = 0


class CaptureGauges(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges of one capture. Bytes are None before its reader has measured them."""

    name: str
    behind: int | None
    retained: int | None
    stopped: bool
    changes: int


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges at one moment."""

    lag_events: int
    oldest_age_seconds: float
    inflight_events: int
    stuck_processing_events: int
    dead_letters: int
    breakers_open: int
    projections: tuple[ProjectionGauges, ...] = ()
    captures: tuple[CaptureGauges, ...] = ()
    parked: dict[WaitsFor, int] = {}


def read_gauges(store: Store, *, stuck_after: float) -> Gauges:
    """Reads the gauges. Deliveries in flight for more than `stuck_after` seconds, or without live owner, are stuck."""
    lag, limits = store.statistics.lag(stuck_after=stuck_after), store.limits.read()
    return Gauges(
        lag_events=lag.due,
        oldest_age_seconds=lag.oldest,
        inflight_events=lag.sending,
        stuck_processing_events=lag.stuck,
        dead_letters=lag.dead,
        breakers_open=sum(destination.open_until > 0 for destination in limits.destinations),
        projections=tuple(_projection(store, row) for row in store.projections.list()),
        captures=tuple(_capture(row) for row in store.captures.list()),
        parked=store.parked_runs.count(),
    )


def _capture(row: CaptureRow) -> CaptureGauges:
    return CaptureGauges(
        name=row.name, behind=row.behind_bytes, retained=row.retained_bytes, stopped=row.is_down, changes=row.changes
    )  # fmt: skip


def _projection(store: Store, row: ProjectionRow) -> ProjectionGauges:
    lag, building = store.projections.lag(row.name, most=_KEYS), row.of("building")
    return ProjectionGauges(
        name=row.name, lag_events=lag.events, oldest_age_seconds=lag.age, stopped=row.state == "stopped",
        copied=0 if building is None else building.copied, expected=0 if building is None else building.expected,
        rejected=0 if building is None else building.rejected,
    )  # fmt: skip


class CachedGauges:
    """Reads the gauges at most every `max_age` seconds, however often they are requested. Blocks while reading."""

    def __init__(
        self,
        store: Store,
        *,
        stuck_after: float,
        max_age: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._stuck_after = stuck_after
        self._max_age = max_age
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._until = 0.0
        self._seen: Gauges | None = None

    def read(self) -> Gauges | None:
        """Returns the gauges; None if the database is unavailable, because old values would hide that."""
        with self._lock:
            if self._monotonic() >= self._until:
                try:
                    self._seen = read_gauges(self._store, stuck_after=self._stuck_after)
                except StoreError:
                    self._seen = None
                self._until = self._monotonic() + self._max_age
            return self._seen


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

GAUGES: Final[dict[str, tuple[str, str]]] = {
    "outbox_lag_events": ("lag_events", "Deliveries that are due and not claimed."),
    "outbox_oldest_age_seconds": ("oldest_age_seconds", "Seconds since the oldest unclaimed delivery became due."),
    "outbox_inflight_events": ("inflight_events", "Deliveries that workers hold."),
    "outbox_stuck_processing_events": (
        "stuck_processing_events",
        "Deliveries held for too long, or by a worker that is not alive.",
    ),
    "outbox_dead_letters": ("dead_letters", "Dead letters: deliveries in `aborted`, waiting for an operator."),
    "destination_breaker_open": ("breakers_open", "Destinations whose breaker is open."),
}
"""Metric → the field of `Gauges`, and its help text."""

PROJECTION_GAUGES: Final[dict[str, tuple[str, str]]] = {
    "projection_stopped": ("stopped", "Whether a projection is stopped, because its index is ahead of the database."),
    "projection_rebuild_copied": ("copied", "Documents that a rebuild under way has copied."),
    "projection_rebuild_expected": ("expected", "Documents that the source had when the rebuild began."),
    "projection_rebuild_rejected": ("rejected", "Documents that the index which is being built has rejected."),
}
"""Metric with the label `projection` → the field of `ProjectionGauges`, and its help text."""

CAPTURE_GAUGES: Final[dict[str, tuple[str, str]]] = {
    "capture_behind_bytes": ("behind", "Bytes of the source's log that a capture has not stored yet."),
    "capture_retained_bytes": ("retained", "Bytes of its log that the source keeps for a capture."),
    "capture_stopped": ("stopped", "Whether a capture is stopped, or its source has been away for a minute."),
}
"""Metric with the label `capture` → the field of `CaptureGauges`, and its help text."""

FLOW_PARKED_RUNS: Final = ("flow_parked_runs", "Workflow runs that are parked, by what they wait for.")
"""A gauge with the label `waits_for`."""

CAPTURE_CHANGES: Final = ("capture_changes_total", "Messages that a capture has published.")
"""A counter in the database, with the label `capture`: each daemon shows the same number."""

_BOTH: Final = ("outbox_lag_events", "outbox_oldest_age_seconds")
"""Metrics that exist for all deliveries, without a label, and for each projection."""

_KEYS: Final = 10_000
"""Keys of a projection whose events are counted for its lag."""


def render(dumps: Iterable[bytes], gauges: Gauges | None = None) -> bytes:
    """Returns the sum of the metrics of several processes, in Prometheus's text format.

    Without prometheus-client it is a comment that says so, so that a scrape does not fail.
    """
    try:
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - the extra `server`
    except ImportError:
        return b'# prometheus-client is not installed: pip install "todoku[server]"\n'
    return generate_latest(Collector(lambda: merge(dumps), lambda: gauges))


class Collector:
    """todoku's metrics for prometheus-client: `REGISTRY.register(Collector(…))` exports them beside your own."""

    def __init__(self, snapshot: Callable[[], Snapshot], gauges: Callable[[], Gauges | None] = lambda: None) -> None:
        self._snapshot = snapshot
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Yields every metric, as prometheus-client requires."""
        from prometheus_client import core  # noqa: PLC0415 - the extra `server`

        snapshot, gauges = self._snapshot(), self._gauges()
        for counter in COUNTERS:
            family = core.CounterMetricFamily(counter.name, counter.help, labels=_names(counter.label))
            for label, number in snapshot.counters[counter.name].items():
                family.add_metric(_values(counter.label, label), number)
            yield family
        for histogram in HISTOGRAMS:
            shown = core.HistogramMetricFamily(histogram.name, histogram.help, labels=_names(histogram.label))
            for label, buckets in snapshot.histograms[histogram.name].items():
                edges = [*(str(float(edge)) for edge in histogram.edges), "+Inf"]
                values = list(zip(edges, [*buckets.up_to, buckets.number], strict=True))
                shown.add_metric(_values(histogram.label, label), values, buckets.total)
            yield shown
        if gauges is None:
            return
        for name, (field, text) in (GAUGES | PROJECTION_GAUGES).items():
            gauge = core.GaugeMetricFamily(name, text)
            if name in GAUGES:
                gauge.add_sample(name, {}, getattr(gauges, field))
            for one in gauges.projections if name in _BOTH or name in PROJECTION_GAUGES else ():
                gauge.add_sample(name, {"projection": one.name}, float(getattr(one, field)))
            yield gauge
        parked = core.GaugeMetricFamily(*FLOW_PARKED_RUNS, labels=["waits_for"])
        for waits_for, number in gauges.parked.items():
            parked.add_metric([waits_for], number)
        yield parked
        yield from _captures(gauges.captures)


def _captures(captures: Sequence[CaptureGauges]) -> Iterator[Metric]:
    """Yields the metrics of captures. What was not measured yet has no sample: unknown is not 0."""
    from prometheus_client import core  # noqa: PLC0415 - the extra `server`

    for name, (field, text) in CAPTURE_GAUGES.items():
        gauge = core.GaugeMetricFamily(name, text, labels=["capture"])
        for one in captures:
            if (value := getattr(one, field)) is not None:
                gauge.add_metric([one.name], float(value))
        yield gauge
    changes = core.CounterMetricFamily(*CAPTURE_CHANGES, labels=["capture"])
    for one in captures:
        changes.add_metric([one.name], one.changes)
    yield changes


def _names(label: str | None) -> Sequence[str]:
    return () if label is None else label.split(",")


def _values(label: str | None, value: str) -> list[str]:
    """Returns the values of one or several labels; for values counted as OTHER, OTHER for each label."""
    names, values = _names(label), value.split(",")
    return values if len(values) == len(names) else [value] * len(names)


def observe_with(meter: Meter, snapshot: Callable[[], Snapshot]) -> None:
    """Registers the metrics as observable OpenTelemetry counters, which cost nothing until they are exported.

    A histogram becomes its Prometheus series (`_bucket` with `le`, `_count`, `_sum`), because OpenTelemetry has no
    observable histogram.
    """
    for counter in COUNTERS:
        meter.create_observable_counter(
            counter.name, [_reading(snapshot, counter.name, counter.label)], description=counter.help
        )
    for histogram in HISTOGRAMS:
        for part in ("bucket", "count", "sum"):
            read = _reading_part(snapshot, histogram.name, histogram.label, histogram.edges, part)
            meter.create_observable_counter(f"{histogram.name}_{part}", [read], description=histogram.help)


def _reading(
    snapshot: Callable[[], Snapshot], name: str, label: str | None
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - the extra `otel`

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(number, dict(zip(_names(label), _values(label, value), strict=True)))
            for value, number in snapshot().counters[name].items()
        ]

    return read


def _reading_part(
    snapshot: Callable[[], Snapshot], name: str, label: str | None, edges: Sequence[float], part: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - the extra `otel`

    def read(_: CallbackOptions) -> Iterable[Observation]:
        for value, buckets in snapshot().histograms[name].items():
            labels = dict(zip(_names(label), _values(label, value), strict=True))
            if part == "bucket":
                for edge, number in zip((*edges, math.inf), (*buckets.up_to, buckets.number), strict=True):
                    yield Observation(number, {**labels, "le": "+Inf" if edge == math.inf else str(float(edge))})
            else:
                yield Observation(buckets.number if part == "count" else buckets.total, labels)

    return read
