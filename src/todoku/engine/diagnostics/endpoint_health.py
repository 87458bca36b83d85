"""How each destination does: successes, failures, response times, its breaker. A host of HTTP requests is one, too."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from todoku.core.rates import Percentiles, percentiles
from todoku.engine.diagnostics.shared_numbers import SharedNumbers
from todoku.store.limits import Restriction
from todoku.store.rates import Flows
from todoku.store.samples import Failure, Success

_HEALTHY: Final = 0.99
"""The share of successes from which on a destination is not called failing."""


class LastFailure(msgspec.Struct, frozen=True):
    """The attempt that failed last. `status`: the receiver's HTTP status."""

    at: float
    reason: str
    error: str | None
    status: int | None
    final: bool


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that is declared, limited, or was sent something in the last hour.

    `succeeded` and `failed` count attempts of the last `window` seconds: at most an hour, less where very many failed.
    `success_rate` is their share; null: there were none. `run`: how long the last attempts took, in seconds.
    `open_until` (unix seconds): its breaker is open. `seen_at`: when a worker last reported serving it.
    """

    name: str
    kind: Literal["host", "destination"]
    concurrency: int | None
    rate: float | None
    open_until: float | None
    failures: int
    seen_at: float | None
    running: int
    succeeded: int
    failed: int
    success_rate: float | None
    window: float
    run: Percentiles | None
    per_minute: tuple[int, ...]
    last_failure: LastFailure | None


def endpoint_health(numbers: SharedNumbers) -> tuple[EndpointHealth, ...]:
    """Returns all destinations by name, at most a few seconds old."""
    return numbers.share("endpoint health", lambda: _all_health(numbers))


def _all_health(numbers: SharedNumbers) -> tuple[EndpointHealth, ...]:
    flows, now, known = numbers.flows("minute"), numbers.now(), numbers.known()
    limits = {limit.name: limit for limit in numbers.limits().destinations}
    since = max(numbers.failures_since(), flows.points[0].at.timestamp())
    failures: dict[str, list[Failure]] = {}
    for failure in numbers.failures():
        failures.setdefault(failure.destination, []).append(failure)
    times = _run_times(numbers)
    running: dict[str, int] = {}
    for place in numbers.running():
        running[place.destination] = running.get(place.destination, 0) + place.number
    done = sent_per_minute(flows)
    names = sorted({*known.destinations, *limits, *failures, *done, *running})
    return tuple(
        _health(
            name,
            limits.get(name),
            done.get(name) or (0,) * len(flows.points),
            [one for one in failures.get(name, ()) if one.ended_at >= since],
            flows=flows,
            seen_at=known.seen(name),
            running=running.get(name, 0),
            since=since,
            window=now - since,
            run=percentiles(times.get(name, ())),
        )
        for name in names
        if not name.endswith("://")  # the name under which workers serve every host
    )


def needs_look_first(endpoint: EndpointHealth) -> tuple[bool, bool, int, str]:
    """Orders destinations: those with an open breaker, those that fail, then those with the most successes."""
    failing = endpoint.success_rate is not None and endpoint.success_rate < _HEALTHY
    return endpoint.open_until is None, not failing, -endpoint.succeeded, endpoint.name


def sent_per_minute(flows: Flows) -> dict[str, tuple[int, ...]]:
    """Returns what succeeded in each stretch, by destination."""
    found: dict[str, list[int]] = {}
    for place in flows.places:
        sums = found.setdefault(place.destination, [0] * len(flows.points))
        for n, number in enumerate(place.succeeded):
            sums[n] += number
    return {name: tuple(sums) for name, sums in found.items()}


def _run_times(numbers: SharedNumbers) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    ended: list[Success | Failure] = [*numbers.successes(), *numbers.failures()]
    for one in ended:
        if one.run is not None:
            found.setdefault(one.destination, []).append(one.run)
    return found


def _health(
    name: str, limit: Restriction | None, done: tuple[int, ...], failures: list[Failure], *,
    flows: Flows, seen_at: float | None, running: int, since: float, window: float, run: Percentiles | None,
) -> EndpointHealth:  # fmt: skip
    within = [flow.at.timestamp() + flows.width > since for flow in flows.points]
    succeeded = sum(number for number, counts in zip(done, within, strict=True) if counts)
    attempts = succeeded + len(failures)
    last = failures[0] if failures else None
    return EndpointHealth(
        name=name,
        kind="host" if "://" in name else "destination",
        concurrency=None if limit is None else limit.concurrency,
        rate=None if limit is None else limit.rate,
        open_until=None if limit is None or not limit.open_until else limit.open_until,
        failures=0 if limit is None else limit.failures,
        seen_at=seen_at,
        running=running,
        succeeded=succeeded,
        failed=len(failures),
        success_rate=succeeded / attempts if attempts else None,
        window=window,
        run=run,
        per_minute=done,
        last_failure=None
        if last is None
        else LastFailure(last.ended_at, last.reason, last.error, last.response_status, last.final),
    )
