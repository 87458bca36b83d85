"""The condition of a daemon, as the health endpoints return it. Imports no web framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from todoku.store.deliveries import Delivery
from todoku.store.statistics import Counts


class Check(msgspec.Struct, frozen=True):
    """One condition of readiness. `reason`: the code that `/readyz` returns while it is not met."""

    reason: str
    ok: bool
    detail: str = ""


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as `/readyz?verbose` returns it."""

    number: int
    pid: int
    state: str
    restarts: int
    worker_id: str | None = None
    held: int = 0
    running: int = 0
    blocked: str | None = None
    silent_sec: float = 0.0


class ServingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One of several processes that serve HTTP, as `/readyz?verbose` returns it. The first is the daemon's own."""

    number: int
    pid: int
    state: str
    restarts: int


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition of a daemon at one moment."""

    live: bool
    state: str
    checks: tuple[Check, ...]
    workers: tuple[WorkerProcess, ...] = ()
    serving: tuple[ServingProcess, ...] = ()
    """Empty: there is one serving process."""
    breakers: tuple[str, ...] = ()
    pings: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """The reasons why the daemon is not ready; empty if it is."""
        return [check.reason for check in self.checks if not check.ok]

    @property
    def blocked(self) -> list[str]:
        """The handlers that block the event loops of their workers."""
        return sorted({worker.blocked for worker in self.workers if worker.blocked})


class HealthSource(Protocol):
    """The data of the health endpoints. `condition` never blocks; the other methods may query the database."""

    title: str

    def condition(self) -> Condition:
        """Returns the daemon's condition."""

    def metrics(self) -> bytes:
        """Returns the metrics as Prometheus text."""

    def counts(self) -> Counts:
        """Returns the numbers of deliveries by status."""

    def newest(self, limit: int) -> tuple[Delivery, ...]:
        """Returns the last changed deliveries of any status."""

    def correlations(self, deliveries: Sequence[Delivery]) -> dict[UUID, str]:
        """Returns the correlation ids of the messages of these deliveries, by message id."""
