"""How each queue does: depth, age, what runs, how much of what may run, and what it gets done."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.rates import Eta, estimate_eta
from todoku.engine.diagnostics.shared_numbers import SharedNumbers
from todoku.store.depths import QueueDepth
from todoku.store.limits import Restriction
from todoku.store.rates import Flows

_RATE_MINUTES: Final = 5
"""Whole minutes over which the throughput of a queue is measured, beside the present one."""


class QueueHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that is declared, limited or paused, has waiting deliveries, or got something done in the last hour.

    A limit of null: unlimited. `due` and `later` were counted up to a bound: at least so many, unless `exact`.
    `oldest`: seconds for which the first of them has been due. `slots`: how many may run at once, by the limit or
    by the workers. `eta`: at the present throughput, if nothing more arrives.
    """

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    waiting: bool
    due: int
    later: int
    oldest: float
    exact: bool
    running: int
    slots: int
    utilisation: float
    per_minute: tuple[int, ...]
    throughput: float
    eta: Eta


def queue_health(numbers: SharedNumbers) -> tuple[QueueHealth, ...]:
    """Returns all queues by name, at most a few seconds old."""
    return numbers.share("queue health", lambda: _all_health(numbers))


def _all_health(numbers: SharedNumbers) -> tuple[QueueHealth, ...]:
    limits = {limit.name: limit for limit in numbers.limits().queues}
    depths, flows = numbers.depths(), numbers.flows("minute")
    throughput = done_per_minute(flows)
    running: dict[str, int] = {}
    for place in numbers.running():
        running[place.queue] = running.get(place.queue, 0) + place.number
    seconds = _measured_seconds(flows, numbers.now())
    names = sorted({*numbers.known().queues, *limits, *depths, *throughput, *running})
    return tuple(
        _health(
            name,
            limits.get(name),
            depths.get(name) or QueueDepth(name, 0, 0.0, 0, exact=True),
            running=running.get(name, 0),
            slots=numbers.slots(name),
            done=throughput.get(name) or (0,) * len(flows.points),
            seconds=seconds,
        )
        for name in names
    )


def done_per_minute(flows: Flows) -> dict[str, tuple[int, ...]]:
    """Returns what succeeded in each stretch, by queue."""
    found: dict[str, list[int]] = {}
    for place in flows.places:
        sums = found.setdefault(place.queue, [0] * len(flows.points))
        for n, number in enumerate(place.succeeded):
            sums[n] += number
    return {name: tuple(sums) for name, sums in found.items()}


def _measured_seconds(flows: Flows, now: float) -> float:
    return _RATE_MINUTES * flows.width + max(0.0, now - flows.points[-1].at.timestamp())


def _health(
    name: str, limit: Restriction | None, depth: QueueDepth, *,
    running: int, slots: int, done: tuple[int, ...], seconds: float,
) -> QueueHealth:  # fmt: skip
    concurrency = None if limit is None else limit.concurrency
    most = slots if concurrency is None else concurrency
    throughput = sum(done[-_RATE_MINUTES - 1 :]) / seconds
    return QueueHealth(
        name=name,
        paused=limit is not None and limit.paused,
        concurrency=concurrency,
        rate=None if limit is None else limit.rate,
        waiting=bool(depth.due or depth.later),
        due=depth.due,
        later=depth.later,
        oldest=depth.oldest,
        exact=depth.exact,
        running=running,
        slots=most,
        utilisation=min(1.0, running / most) if most else 0.0,
        per_minute=done,
        throughput=throughput,
        eta=estimate_eta(depth.due, ended=throughput, arrived=0.0),
    )
