"""How a daemon is, as values: what the health endpoints show. Imports no web framework."""

from __future__ import annotations

from typing import Protocol

import msgspec

from todoku.store.deliveries import Delivery
from todoku.store.statistics import Counts


class Check(msgspec.Struct, frozen=True):
    """One condition of being ready. `reason` is the word `/readyz` gives while it does not hold."""

    reason: str
    ok: bool
    detail: str = ""


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as `/readyz?verbose` shows it."""

    number: int
    pid: int
    state: str
    restarts: int
    worker_id: str | None = None
    held: int = 0
    running: int = 0
    blocked: str | None = None
    silent_sec: float = 0.0


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon is at this moment."""

    live: bool
    state: str
    checks: tuple[Check, ...]
    workers: tuple[WorkerProcess, ...] = ()
    breakers: tuple[str, ...] = ()
    pings: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Why it may not be given work; empty if it may."""
        return [check.reason for check in self.checks if not check.ok]


class Watched(Protocol):
    """What is shown. `condition` never blocks; the others may ask the database."""

    title: str

    def condition(self) -> Condition:
        """How it is."""

    def metrics(self) -> bytes:
        """Prometheus text."""

    def counts(self) -> Counts:
        """Deliveries by status."""

    def newest(self, limit: int) -> tuple[Delivery, ...]:
        """What changed last, whatever its status."""
