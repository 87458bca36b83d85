"""Alerts of a process without a daemon: sent from this process, and repeated as reminders while they last."""

from __future__ import annotations

import threading
import time
from typing import Final

from todoku.core.alert import Name, Raised
from todoku.core.errors import TodokuError
from todoku.core.settings import Settings
from todoku.engine.diagnostics.summary import without_password
from todoku.engine.observability.alert_sinks import sinks
from todoku.engine.observability.alerts import MemoryAlertStates, send_alert
from todoku.engine.observability.log import Log

_QUIET: Final = 60.0


class Alarm:
    """Sends alerts to the configured sinks. `raised` never raises, and does not wait for the sinks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._own = MemoryAlertStates()

    def raised(self, name: Name, value: float) -> threading.Thread | None:
        """Sends the alert to every sink if the value is above its threshold. Returns the thread that does it."""
        threshold = getattr(self._settings.alerts.thresholds, name)
        if threshold is None or value <= threshold:
            return None
        thread = threading.Thread(target=self._send, args=[Raised(name, value, threshold)], name="todoku alarm")
        thread.daemon = True
        thread.start()
        return thread

    def _send(self, found: Raised) -> None:
        alerts = self._settings.alerts
        with self._lock:
            try:
                known = {sink.name: sink for sink in sinks(self._settings)}
            except TodokuError as error:  # an extra that is not installed
                Log(alert=found.name).error("ALERT_NOT_TOLD", error_type=type(error).__name__, error=str(error))
                return
            began = time.monotonic()
            due = self._own.take({found.name: found}, tuple(known), quiet=_QUIET, remind=alerts.remind_sec)
            for telling in due:
                if send_alert(known[telling.standing.sink], telling, without_password(self._settings.database)):
                    self._own.record_sent(telling, remind=alerts.remind_sec)
            Log(alert=found.name).debug("ALARM", told=len(due), seconds=round(time.monotonic() - began, 3))
