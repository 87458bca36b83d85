"""The numbers that dashboards show, read from the store once for all viewers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec

from todoku.core.alert import AlertStanding
from todoku.core.rates import Eta, estimate_eta
from todoku.core.settings import Settings
from todoku.engine.diagnostics.shared_values import SharedValues
from todoku.engine.worker.pools import JOBS_AT_ONCE
from todoku.store.columns import moment
from todoku.store.depths import DeadReason, QueueDepth, RunningPlace
from todoku.store.destinations import Known
from todoku.store.leases import WorkerRow
from todoku.store.limits import Limits
from todoku.store.rates import Flows, PlaceFlow
from todoku.store.samples import Failure, Success
from todoku.store.statistics import Counts, Lag
from todoku.store.store import Store

T = TypeVar("T")
Per = Literal["minute", "hour"]

_WIDTHS: Final[dict[Per, tuple[int, int]]] = {"minute": (60, 60), "hour": (3600, 48)}
"""Seconds of a stretch, and how many stretches there are."""

_LATE: Final = 2
"""So many stretches before the present one are read again: a commit may come after its own time."""

_REMEMBERED: Final = 300.0
"""Seconds for which rates are remembered: so far back minutes are read again."""

_SUCCESSES: Final = 1_000
_FAILURES: Final = 1_000
_HOUR: Final = 3_600.0

_WINDOW: Final = 20.0
"""Seconds over which the present rates are measured."""


class Rates(msgspec.Struct, frozen=True):
    """Deliveries a second at present: that arrive, and that end, with success or as dead letters."""

    arrived: float
    ended: float


class _Succeeded(msgspec.Struct, frozen=True):
    """A sample of what succeeded last, and how many a second succeeded when it was read."""

    sample: tuple[Success, ...]
    rate: float


class SharedNumbers:
    """The numbers of one store. Every call may query the database; what was read just now is not read again."""

    def __init__(self, store: Store, settings: Settings, values: SharedValues | None = None) -> None:
        self._store = store
        self._settings = settings
        self._values = SharedValues() if values is None else values
        self._past: dict[Per, Flows] = {}
        self._seen_rates: tuple[tuple[float, float], ...] = ()
        """What succeeded a second, and at which moment, of the last minutes."""

    @property
    def forgotten(self) -> int:
        """How many times everything was forgotten: what was made of the numbers before is out of date."""
        return self._values.cleared

    def share(self, name: str, compute: Callable[[], T]) -> T:
        """Returns what was made of the numbers just now, for all viewers."""
        return self._values.get(name, compute, kept=0.5, share=0)

    def forget(self) -> None:
        """Forgets everything, after an act: its author looks at once whether it worked."""
        self._values.clear()
        self._past = {}

    def now(self) -> float:
        """The database's clock, in unix seconds: asked once a second, and counted on in between."""
        ahead = self._values.get("clock", lambda: self._store.ping() - time.monotonic())
        return ahead + time.monotonic()

    def flows(self, per: Per) -> Flows:
        """What arrived and ended in the last hour by minute, or in the last two days by hour; the last is unfinished.

        Stretches that are over change no more, so they are read less often than the last one.
        """
        width, number = _WIDTHS[per]
        kept = 15.0 if per == "minute" else 60.0
        over = self._values.get(f"{per}s that are over", partial(self._over, per), kept=kept)
        ended, ends = int(over.points[-1].at.timestamp()) + width, self._begins(width) + width
        read = partial(self._flows, ended, ends, width)
        return join_flows(over, self._values.get(f"last {per} {ended} {ends}", read, kept=kept / 10), number)

    def _flows(self, since: int, until: int, width: int) -> Flows:
        rate = self.highest_rate(since)
        return self._store.rates.flows(since=moment(since), until=moment(until), width=width, rate=rate)

    def highest_rate(self, since: float) -> float:
        """The most that succeeded a second since a moment (unix seconds), as far as it was seen in the last minutes."""
        return max(self._busy(), *(rate for at, rate in self._seen_rates if at >= since), 0.0)

    def _over(self, per: Per) -> Flows:
        """The stretches before the present one. Those that were over some time ago are remembered, not read again."""
        width, number = _WIDTHS[per]
        until = self._begins(width)
        since = until - (number - 1) * width
        past = None if (known := self._past.get(per)) is None else without_last(known, _LATE)
        if past is not None and since < (read := int(past.points[-1].at.timestamp()) + width) < until:
            over = join_flows(past, self._flows(read, until, width), number - 1)
        else:
            over = self._flows(since, until, width)
        self._past = {**self._past, per: over}
        return over

    def _begins(self, width: int) -> int:
        return int(self.now() // width) * width

    def counts(self) -> Counts:
        """Deliveries by status."""
        return self._values.get("counts", lambda: self._store.statistics.counts(max_age=10.0))

    def lag(self) -> Lag:
        """How far behind the workers are."""
        stuck_after = self._settings.max_processing_sec
        return self._values.get("lag", lambda: self._store.statistics.lag(stuck_after=stuck_after))

    def rates(self) -> Rates:
        """What arrives and ends a second, in the last twenty seconds."""
        return self._values.get("rates", self._rates)

    def _rates(self) -> Rates:
        now = self.now()
        arrived = self._store.rates.arrived(since=now - _WINDOW, until=now) / _WINDOW
        dead = sum(one.final and one.ended_at > now - _WINDOW for one in self.failures())
        return Rates(arrived, self._busy() + dead / _WINDOW)

    def _busy(self) -> float:
        """What succeeds a second at present, by the sample of what succeeded last."""
        return self._succeeded().rate

    def _succeeded(self) -> _Succeeded:
        return self._values.get("successes", self._read_succeeded)

    def _read_succeeded(self) -> _Succeeded:
        """Reads the sample. Its rate is that of now: a second later, the same rows would look like fewer a second."""
        sample = self._store.samples.successes(most=_SUCCESSES)
        ends = [one.finished_at for one in sample]
        now = self.now()
        rate = rate_of(ends, now, full=len(ends) >= _SUCCESSES)
        self._seen_rates = (*(seen for seen in self._seen_rates if seen[0] > now - _REMEMBERED), (now, rate))
        return _Succeeded(sample, rate)

    def eta(self) -> Eta:
        """When the backlog will be gone at the present rates."""
        rates = self.rates()
        return estimate_eta(self.lag().due, ended=rates.ended, arrived=rates.arrived)

    def successes(self) -> tuple[Success, ...]:
        """The deliveries that succeeded last: at most 1,000, the newest first."""
        return self._succeeded().sample

    def failures(self) -> tuple[Failure, ...]:
        """The attempts that failed last, within the hour: at most 1,000, the newest first."""
        return self._values.get(
            "failures", lambda: self._store.samples.failures(since=self._hour_ago(), most=_FAILURES)
        )

    def failures_since(self) -> float:
        """From when on `failures` has all of them, in unix seconds."""
        found = self.failures()
        return found[-1].ended_at if len(found) >= _FAILURES else self._hour_ago().timestamp()

    def _hour_ago(self) -> datetime:
        return moment(self.now() - _HOUR)

    def depths(self) -> dict[str, QueueDepth]:
        """What waits, by queue."""
        found = self._values.get("depths", self._store.depths.queues)
        return {depth.queue: depth for depth in found}

    def running(self) -> tuple[RunningPlace, ...]:
        """What runs, by queue and destination."""
        return self._values.get("running", self._store.depths.running)

    def dead_reasons(self) -> tuple[DeadReason, ...]:
        """The newest dead letters by reason."""
        return self._values.get("dead reasons", self._store.depths.dead_reasons)

    def limits(self) -> Limits:
        """Pauses, limits, breakers, and live workers."""
        return self._values.get("limits", self._store.limits.read)

    def known(self) -> Known:
        """Queues and destinations that have a row."""
        return self._values.get("known", self._store.destinations.known)

    def workers(self) -> tuple[WorkerRow, ...]:
        """The leases of all workers."""
        return self._values.get("workers", self._store.leases.workers)

    def alerts(self) -> tuple[AlertStanding, ...]:
        """Alerts that a daemon has recorded."""
        return self._values.get("alerts", self._store.alerts.rows)

    def slots(self, queue: str) -> int:
        """How many deliveries of a queue the live workers can run at once, if they have this process's settings."""
        requests = f"{queue}:".startswith(("http:", "flow:"))
        each = self._settings.http_concurrency if requests else self._settings.concurrency or JOBS_AT_ONCE
        return each * len(self.limits().workers)


def rate_of(ends: list[float], now: float, *, full: bool) -> float:
    """Ends a second in the last twenty seconds, the newest first. `full`: there are more, and they are older."""
    recent = [at for at in ends if at > now - _WINDOW]
    if full and len(recent) == len(ends):
        return len(recent) / max(0.001, now - recent[-1])
    return len(recent) / _WINDOW


def without_last(flows: Flows, number: int) -> Flows:
    """Returns the flows without their last `number` stretches."""
    places = tuple(PlaceFlow(place.queue, place.destination, place.succeeded[:-number]) for place in flows.places)
    return Flows(flows.width, flows.points[:-number], places, flows.exact)


def join_flows(earlier: Flows, later: Flows, number: int) -> Flows:
    """Joins two spans, the second of which follows the first, and returns the last `number` stretches."""
    before = {(place.queue, place.destination): place.succeeded for place in earlier.places}
    after = {(place.queue, place.destination): place.succeeded for place in later.places}
    no_before, no_after = (0,) * len(earlier.points), (0,) * len(later.points)
    places = tuple(
        PlaceFlow(*name, (before.get(name, no_before) + after.get(name, no_after))[-number:])
        for name in sorted({*before, *after})
    )
    points = (earlier.points + later.points)[-number:]
    return Flows(earlier.width, points, places, earlier.exact and later.exact)
