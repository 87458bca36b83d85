"""The daemon's thread that checks for problems and sends alerts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from todoku.app import App
from todoku.daemon.supervisor import Supervisor
from todoku.engine.diagnostics.summary import without_password
from todoku.engine.observability.alert_sinks import sinks
from todoku.engine.observability.alerts import Alerts
from todoku.engine.observability.log import Log


def create_alert_thread(supervisor: Supervisor, box: App) -> AlertThread:
    """Creates the thread from the settings. CannotStart: a configured sink needs a package that is not installed."""
    settings = box.settings
    alerts = Alerts(
        box.store,
        settings.alerts,
        sinks(settings),
        lambda: (box.telemetry.dump(), *supervisor.metrics.dumps()),
        database=without_password(settings.database),
        stuck_after=settings.max_processing_sec,
    )
    return AlertThread(alerts.look, settings.alerts.interval_sec)


class AlertThread:
    """Checks every few seconds. A check that fails is logged, and the next one runs as usual."""

    def __init__(self, check: Callable[[], None], every: float) -> None:
        self._check = check
        self._every = every
        self._stopped = threading.Event()

    def start(self) -> None:
        """Starts the thread; the first check is immediate."""
        threading.Thread(target=self._run, name="todoku-alerts", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the running check, without waiting for it."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._check()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next check may succeed
                Log().error("ALERTS_FAILED", error_type=type(error).__name__, exc_info=True)
            self._stopped.wait(self._every * (0.9 + 0.2 * random.random()))  # noqa: S311 - keeps daemons out of step; no secret
