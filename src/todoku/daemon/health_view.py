"""The state of a supervisor for the health endpoints. Health is read from memory, all else from the database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from todoku.api.condition import Check, Condition, WorkerProcess
from todoku.app import App
from todoku.core.errors import SchemaError
from todoku.core.redaction import is_sensitive
from todoku.daemon.children import Child, ChildPlace
from todoku.daemon.supervisor import Supervisor
from todoku.engine.observability.exposition import CachedGauges, render
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.engine.worker.health import Health
from todoku.store.deliveries import Delivery, Filter
from todoku.store.statistics import Counts
from todoku.store.store import Store

_STALLED: Final = 10.0
"""Seconds. A supervisor whose last tick is older counts as dead."""

_COUNTS_MAX_AGE: Final = 1.0


class HealthView:
    """Implements `HealthSource` for a supervisor and its store."""

    def __init__(self, supervisor: Supervisor, box: App, title: str) -> None:
        self.title = title
        self._supervisor = supervisor
        self._store = box.store
        self._telemetry = box.telemetry
        self._gauges = CachedGauges(box.store, stuck_after=supervisor.settings.max_processing_sec)

    def condition(self) -> Condition:
        """The present condition; never blocks."""
        supervisor, now = self._supervisor, time.monotonic()
        health = [child.health for child in supervisor.children if child.health is not None]
        return Condition(
            live=now - supervisor.ticked_at < _STALLED,
            state=supervisor.state,
            checks=self._checks(),
            workers=tuple(_worker(place, now) for place in supervisor.places),
            serving=() if supervisor.serving is None else supervisor.serving.condition(),
            breakers=tuple(sorted({name for one in health for name in one.breakers})),
            pings=tuple(sorted({name for one in health for name in one.pings})),
        )

    def _checks(self) -> tuple[Check, ...]:
        supervisor = self._supervisor
        waits_for, guardrail, children = supervisor.opening.waits_for, supervisor.guardrail, supervisor.children
        unmigrated = isinstance(waits_for, SchemaError)
        why = "" if waits_for is None else str(waits_for)
        working = sum(child.is_working for child in children)
        trips = any_tripped_and_none_claims([child.health for child in children])
        return (
            Check("disabled", supervisor.settings.enabled, "" if supervisor.settings.enabled else "TODOKU_ENABLED"),
            Check("database", waits_for is None or unmigrated, guardrail.why or ("" if unmigrated else why)),
            Check("not_migrated", not unmigrated, why if unmigrated else ""),
            Check("tripped", not guardrail.tripped and not trips, guardrail.why),
            Check("draining", supervisor.state != "draining"),
            Check(
                "no_worker", working > 0 or not supervisor.settings.enabled, f"{working} of {len(supervisor.places)}"
            ),
        )

    def metrics(self) -> bytes:
        """Metrics as Prometheus text, without those of the database while it does not answer."""
        answers = self._supervisor.state != "starting" and not self._supervisor.guardrail.tripped
        dumps = (self._telemetry.dump(), *self._supervisor.metrics.dumps())
        return render(dumps, self._gauges.read() if answers else None)

    def counts(self) -> Counts:
        """The number of deliveries by status."""
        return self._store.statistics.counts(max_age=_COUNTS_MAX_AGE)

    def newest(self, limit: int) -> tuple[Delivery, ...]:
        """The deliveries that changed last, among the newest unfinished and the newest succeeded ones."""
        found = [
            *self._store.deliveries.find(Filter(), limit=limit).items,
            *self._store.deliveries.find(Filter(status="succeeded"), limit=limit).items,
        ]
        return tuple(sorted(found, key=lambda delivery: delivery.updated_at, reverse=True)[:limit])

    def correlations(self, deliveries: Sequence[Delivery]) -> dict[UUID, str]:
        """The correlation ids of their messages, unless the setting `mask_fields` masks them."""
        if is_sensitive("correlation_id", frozenset(self._supervisor.settings.mask_fields)):
            return {}
        return correlations(self._store, deliveries)


def correlations(store: Store, deliveries: Sequence[Delivery]) -> dict[UUID, str]:
    """The correlation ids of the messages of these deliveries, by message id."""
    found = store.messages.headers([row.message_id for row in deliveries if row.message_id is not None])
    named = {id: correlation_id(decode_headers(headers)) for id, headers in found.items()}
    return {id: name for id, name in named.items() if name is not None}


def any_tripped_and_none_claims(workers: Sequence[Health | None]) -> bool:
    """Whether a worker stopped claiming because its database fails, and none of the others claims.

    A worker process that still starts (None) does not claim: a database that fails may be what it waits for.
    """
    started = [health for health in workers if health is not None]
    claiming = [health for health in started if health.state == "running" and not health.tripped]
    return not claiming and any(health.tripped for health in started)


def _worker(place: ChildPlace[Child], now: float) -> WorkerProcess:
    child, restarts = place.child, place.restarts
    if child is None:
        return WorkerProcess(number=place.number, pid=0, state="restarting", restarts=restarts)
    health, silent = child.health, round(now - child.last_notice_at, 1)
    if health is None:
        return WorkerProcess(number=place.number, pid=child.pid, state="starting", restarts=restarts, silent_sec=silent)
    return WorkerProcess(
        number=place.number,
        pid=child.pid,
        state=health.state,
        restarts=restarts,
        worker_id=str(health.worker_id),
        held=health.held,
        running=health.running,
        blocked=health.blocked,
        silent_sec=silent,
    )
