"""Schedules in a test: what a worker does beside its work, done when the test says so."""

from __future__ import annotations

from todoku.app import App
from todoku.engine.worker.schedule_firing import Scheduling


def fire(box: App) -> None:
    """Fire every schedule whose slot has come, by the database's clock: its messages are stored, and `drain` runs them.

    `drain` alone fires nothing. With `frozen`, `clock.tick(86_400)` and then this is tomorrow.
    """
    worker = Scheduling(box.store, box.plans, box.settings, box.telemetry, on_fired=box.outbox.wake, on_failure=_raised)
    worker.announce()  # nobody did while the clock was moved, and what nobody announces is not fired
    worker.fire_due()


def _raised(error: Exception) -> None:
    raise error
