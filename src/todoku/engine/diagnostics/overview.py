"""The overview of a database: what arrives, what ends, what waits, what is wrong."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.alert import Name, Reading, Thresholds, action, find_raised, summary
from todoku.core.rates import Eta, Percentiles, percentiles
from todoku.core.settings import Settings
from todoku.engine.diagnostics.endpoint_health import EndpointHealth, endpoint_health, needs_look_first
from todoku.engine.diagnostics.queue_health import QueueHealth, queue_health
from todoku.engine.diagnostics.shared_numbers import Per, Rates, SharedNumbers
from todoku.store.depths import DEAD, DeadReason
from todoku.store.rates import FlowPoint
from todoku.store.samples import Success
from todoku.store.statistics import Lag

_SHOWN: Final = 10
"""Queues and destinations that the overview shows: those that need a look first."""
_WORKERS: Final = 20


class WorkerLease(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: for how many seconds it has had its lease, in how many it ends unless renewed, and what it holds."""

    id: str
    name: str
    state: str
    age: float
    expires_in: float
    alive: bool
    held: int


class BurningAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A value above its threshold. `since` (unix seconds) is null if no daemon has recorded it."""

    name: str
    text: str
    hint: str
    value: float
    threshold: float
    since: float | None


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """How long the last deliveries that succeeded took, in seconds: end to end, before the last attempt, and in it."""

    end_to_end: Percentiles | None
    queued: Percentiles | None
    run: Percentiles | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A database at a glance. Numbers are estimates where `exact` or `backlog.exact` is false.

    `dead` has the newest 10,000 dead letters by reason; `dead_exact`: these are all. `queues` and `destinations` are
    those that need a look first, of `queues_total` and `destinations_total`.
    """

    at: float
    per: Per
    flows: tuple[FlowPoint, ...]
    exact: bool
    counts: dict[str, int]
    backlog: Lag
    rates: Rates
    eta: Eta
    durations: Durations
    dead: tuple[DeadReason, ...]
    dead_exact: bool
    queues: tuple[QueueHealth, ...]
    queues_total: int
    destinations: tuple[EndpointHealth, ...]
    destinations_total: int
    workers: tuple[WorkerLease, ...]
    workers_total: int
    alerts: tuple[BurningAlert, ...]


def overview(numbers: SharedNumbers, settings: Settings, per: Per = "minute") -> Overview:
    """Returns the overview, at most a few seconds old."""
    return numbers.share(f"overview {per}", lambda: _overview(numbers, settings, per))


def _overview(numbers: SharedNumbers, settings: Settings, per: Per) -> Overview:
    flows, counts, lag = numbers.flows(per), numbers.counts(), numbers.lag()
    queues, destinations = queue_health(numbers), endpoint_health(numbers)
    dead, now, workers = numbers.dead_reasons(), numbers.now(), worker_leases(numbers)
    return Overview(
        at=now,
        per=per,
        flows=flows.points,
        exact=flows.exact and counts.exact,
        counts={name: counts.of(name) for name in ("pending", "sending", "succeeded", "failed", "aborted")},
        backlog=lag,
        rates=numbers.rates(),
        eta=numbers.eta(),
        durations=durations(numbers.successes()),
        dead=dead,
        dead_exact=sum(one.number for one in dead) < DEAD,
        queues=tuple(sorted(queues, key=_queue_order)[:_SHOWN]),
        queues_total=len(queues),
        destinations=tuple(sorted(destinations, key=needs_look_first)[:_SHOWN]),
        destinations_total=len(destinations),
        workers=workers[:_WORKERS],
        workers_total=len(workers),
        alerts=burning_alerts(numbers, settings.alerts.thresholds),
    )


def durations(successes: tuple[Success, ...]) -> Durations:
    """Returns the percentiles of a sample. The time in the queue is the rest of the run, retries included."""
    whole = [(one.finished_at - one.created_at, one.run) for one in successes if one.created_at is not None]
    return Durations(
        end_to_end=percentiles(max(0.0, took) for took, _ in whole),
        queued=percentiles(max(0.0, took - run) for took, run in whole if run is not None),
        run=percentiles(one.run for one in successes if one.run is not None),
    )


def worker_leases(numbers: SharedNumbers) -> tuple[WorkerLease, ...]:
    """Returns the workers, those whose lease has ended first, then by name."""
    now = numbers.now()
    found = [
        WorkerLease(
            id=str(row.id),
            name=row.name,
            state=row.state,
            age=max(0.0, now - row.started_at.timestamp()),
            expires_in=row.expires_at.timestamp() - now,
            alive=row.expires_at.timestamp() > now,
            held=row.held,
        )
        for row in numbers.workers()
    ]
    return tuple(sorted(found, key=lambda one: (one.alive, one.name, one.id)))


def burning_alerts(numbers: SharedNumbers, thresholds: Thresholds) -> tuple[BurningAlert, ...]:
    """Returns the alerts that daemons have recorded, and those that the database's own numbers raise now."""
    lag = numbers.lag()
    reading = Reading(dead_letters=lag.dead, oldest_age=lag.oldest, lag=lag.due, stuck=lag.stuck)
    found: dict[Name, BurningAlert] = {
        name: _burning(name, one.value, one.threshold, None) for name, one in find_raised(reading, thresholds).items()
    }
    for standing in numbers.alerts():
        if not standing.over:
            found[standing.name] = _burning(standing.name, standing.value, standing.threshold, standing.since)
    return tuple(found[name] for name in sorted(found))


def _burning(name: Name, value: float, threshold: float, since: float | None) -> BurningAlert:
    return BurningAlert(
        name=name, text=summary(name, value), hint=action(name), value=value, threshold=threshold, since=since
    )


def _queue_order(queue: QueueHealth) -> tuple[bool, float, int, str]:
    return not queue.paused, -queue.oldest, -sum(queue.per_minute), queue.name
