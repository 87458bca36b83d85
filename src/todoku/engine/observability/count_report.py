"""Reports of metrics: what a process has counted since its last one, pushed to a daemon and added there once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Annotated, Final

import msgspec

from todoku.engine.observability.metrics import (
    COUNTERS,
    HISTOGRAMS,
    MOST_LABELS,
    OTHER,
    HistogramBuckets,
    Metrics,
    Snapshot,
    merge,
)

_MOST_PROCESSES: Final = 1_000
_LONGEST_LABEL: Final = 128
_LARGEST: Final = 1e15
"""Of a number in a report: sums of such numbers stay exact for a long time."""


class CountReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process has counted since its last report. `process`: chosen at its start; `number`: counts up from 1.

    A report whose answer was lost is sent again under its number, so that it is added once.
    """

    process: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    number: Annotated[int, msgspec.Meta(ge=1)]
    risen: Snapshot


def rise(now: Snapshot, before: Snapshot) -> Snapshot | None:
    """Returns what was added to the metrics of a process since `before`; None: nothing."""
    counters: dict[str, dict[str, float]] = {}
    for name, values in now.counters.items():
        old = before.counters.get(name, {})
        if risen := {
            label: number - old.get(label, 0) for label, number in values.items() if number > old.get(label, 0)
        }:
            counters[name] = risen
    histograms: dict[str, dict[str, HistogramBuckets]] = {}
    for name, series in now.histograms.items():
        for label, buckets in series.items():
            past = before.histograms[name][label]
            if buckets.number > past.number:
                up_to = [new - old for new, old in zip(buckets.up_to, past.up_to, strict=True)]
                more = HistogramBuckets(up_to, buckets.number - past.number, buckets.total - past.total)
                histograms.setdefault(name, {})[label] = more
    return Snapshot(counters, histograms) if counters or histograms else None


class CountReports:
    """Adds the reports of other processes to the metrics of this one, each once. Thread-safe.

    A process that reports again after more than 1,000 others have is taken for a new one.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._last: OrderedDict[str, int] = OrderedDict()

    def add(self, report: CountReport) -> bool:
        """Adds a report. False: it was added before."""
        with self._lock:
            last = self._last.pop(report.process, 0)
            self._last[report.process] = max(last, report.number)
            if len(self._last) > _MOST_PROCESSES:
                self._last.popitem(last=False)
            if report.number <= last:
                return False
            self._metrics.merge(_known(report.risen, merge([self._metrics.dump()])))
        return True


def _known(risen: Snapshot, now: Snapshot) -> Snapshot:
    """Returns the part of a report that fits the metrics of this version, with no more label values than allowed."""
    counters: dict[str, dict[str, float]] = {}
    for counter in COUNTERS:
        there, added = now.counters[counter.name], counters.setdefault(counter.name, {})
        for given, number in risen.counters.get(counter.name, {}).items():
            if not _fits(given, counter.label) or not 0 < number < _LARGEST:
                continue
            label = given if given in there or len(there.keys() | added.keys()) < MOST_LABELS else OTHER
            added[label] = added.get(label, 0) + number
    histograms = {
        histogram.name: {
            label: buckets
            for label, buckets in risen.histograms.get(histogram.name, {}).items()
            if label in now.histograms[histogram.name] and _is_sound(buckets, len(histogram.edges))
        }
        for histogram in HISTOGRAMS
    }
    return Snapshot(counters, histograms)


def _fits(label: str, names: str | None) -> bool:
    """Whether this is a value of the label, or of several with commas between them; "" if the metric has none."""
    if names is None:
        return not label
    return label == OTHER or (0 < len(label) <= _LONGEST_LABEL and label.count(",") == names.count(","))


def _is_sound(buckets: HistogramBuckets, edges: int) -> bool:
    """Whether these can be the values of a histogram: buckets that never fall, up to their number."""
    steps = [0, *buckets.up_to, buckets.number]
    return len(buckets.up_to) == edges and steps == sorted(steps) and abs(buckets.total) < _LARGEST
