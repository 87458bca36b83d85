"""A thread of a daemon that looks for what is wrong, and tells people."""

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


def alert_thread(supervisor: Supervisor, box: App) -> AlertThread:
    """The thread of a daemon. CannotStart: a sink that was set needs a part that is not installed."""
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
    """Looks every few seconds. A look that fails is logged, and the next one comes."""

    def __init__(self, look: Callable[[], None], every: float) -> None:
        self._look = look
        self._every = every
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; the first look is now."""
        threading.Thread(target=self._run, name="todoku-alerts", daemon=True).start()

    def stop(self) -> None:
        """End after the look in flight, which is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may tell somebody
                Log().error("ALERTS_FAILED", error_type=type(error).__name__, exc_info=True)
            self._stopped.wait(self._every * (0.9 + 0.2 * random.random()))  # noqa: S311 - daemons apart, no secret
