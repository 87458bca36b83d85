"""Alerts: a daemon checks its counters and the database, and sends alerts, once for all daemons.

The state of an alert is in the database, so exactly one daemon sends it, and another one if that daemon dies. While the
database is unavailable, each daemon sends the alerts of its own counters, because they matter most then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from todoku.core.alert import (
    WINDOW,
    Alerting,
    AlertStanding,
    DueAlert,
    Forget,
    Keep,
    Name,
    Raised,
    Reading,
    find_raised,
    new_standing,
    percentile,
    ratio,
    step,
)
from todoku.core.errors import StoreError, TodokuError
from todoku.core.settings import Settings
from todoku.engine.diagnostics.summary import without_password
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.alert_sinks import Sink, build_notice, sinks
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Counter, HistogramBuckets, Snapshot, empty, merge
from todoku.store.store import Store

# ------------------------------------------------------------
# Alerts of a process without a daemon: sent from this process, and repeated as reminders while they last.

_QUIET: Final = 60.0


class Alarm:
    """Sends alerts to the configured sinks. `raised` never raises, and does not wait for the sinks.

    `about`: what the alerts are about, such as the name of a remote queue; None: the database of the settings.
    """

    def __init__(self, settings: Settings, *, about: str | None = None) -> None:
        self._settings = settings
        self._about = without_password(settings.database) if about is None else about
        self._lock = threading.Lock()
        self._own = MemoryAlertStates()

    def raised(self, name: Name, value: float) -> threading.Thread | None:
        """Sends the alert to every sink if the value is above its threshold. Returns the thread that does it."""
        threshold = getattr(self._settings.alerts.thresholds, name)
        if threshold is None or value <= threshold:
            return None
        found: dict[Name, Raised] = {name: Raised(name, value, threshold)}
        thread = threading.Thread(target=self._send, args=[found, _QUIET], name="todoku alarm")
        thread.daemon = True
        thread.start()
        return thread

    def check(self, reading: Reading, *, every: float) -> None:
        """Sends the alerts that a program which checks `every` so many seconds is to send now, and those that are over.

        Blocks while the sinks are told; never raises.
        """
        found = find_raised(reading, self._settings.alerts.thresholds)
        self._send(found, max(_CHECKS_UNTIL_OVER * every, 1.0))

    def _send(self, found: Mapping[Name, Raised], quiet: float) -> None:
        alerts = self._settings.alerts
        with self._lock:
            try:
                known = {sink.name: sink for sink in sinks(self._settings)}
            except TodokuError as error:  # an extra that is not installed
                Log(alerts=[*found]).error("ALERT_NOT_TOLD", error_type=type(error).__name__, error=str(error))
                return
            began = time.monotonic()
            due = self._own.take(found, tuple(known), quiet=quiet, remind=alerts.remind_sec)
            for telling in due:
                if send_alert(known[telling.standing.sink], telling, self._about):
                    self._own.record_sent(telling, remind=alerts.remind_sec)
            Log(alerts=[*found]).debug("ALARM", told=len(due), seconds=round(time.monotonic() - began, 3))


ON_PURPOSE: Final = ("CANCELLED", "BY_HAND")
"""Reasons of dead letters that an operator caused, which are no alert."""

_CHECKS_UNTIL_OVER: Final = 4
"""Checks without the alert after which it is over."""


class AlertStates(Protocol):
    """Where the state of alerts is stored: in the database (`Store.alerts`), or in this process."""

    def take(
        self, found: Mapping[Name, Raised], sinks: Sequence[str], *, quiet: float, remind: float
    ) -> tuple[DueAlert, ...]:
        """Records the alerts raised now, and returns those that this process is to send."""

    def record_sent(self, telling: DueAlert, *, remind: float) -> None:
        """Records that an alert was sent."""


class MemoryAlertStates:
    """The state of alerts in this process's memory. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: dict[tuple[Name, str], AlertStanding] = {}

    def take(
        self, found: Mapping[Name, Raised], sinks: Sequence[str], *, quiet: float, remind: float
    ) -> tuple[DueAlert, ...]:
        """As AlertStates."""
        now = self._clock()
        for name, one in found.items():
            for sink in sinks:
                self._known.setdefault((name, sink), new_standing(one, sink, now))
        telling: list[DueAlert] = []
        for place, known in list(self._known.items()):
            match step(known, found.get(known.name), now, quiet=quiet, remind=remind):
                case Forget():
                    del self._known[place]
                case Keep(standing, told):
                    self._known[place] = standing
                    telling += [] if told is None else [told]
        return tuple(telling)

    def record_sent(self, telling: DueAlert, *, remind: float) -> None:
        """As AlertStates."""
        known, now = telling.standing, self._clock()
        place = (known.name, known.sink)
        if telling.kind == "over":
            self._known.pop(place, None)
        else:
            self._known[place] = msgspec.structs.replace(known, told_at=now, next_at=now + remind)


class CounterWindow:
    """How a daemon's own counters rose in the last five minutes."""

    def __init__(self, dumps: Callable[[], Iterable[bytes]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._dumps = dumps
        self._monotonic = monotonic
        self._seen: deque[tuple[float, Snapshot]] = deque([(monotonic(), empty())])

    def reading(self) -> Reading:
        """Returns the values of the alerts that need counters only."""
        at, now = self._monotonic(), merge(self._dumps())
        self._seen.append((at, now))
        while len(self._seen) > 1 and self._seen[1][0] <= at - WINDOW:
            self._seen.popleft()
        before = self._seen[0][1]

        def rise(counter: Counter, *labels: str) -> float:
            new, old = now.counters[counter.name], before.counters[counter.name]
            return sum(new[label] - old.get(label, 0) for label in labels or new if label in new)

        done, dead, again = (rise(counting.PROCESSED, outcome) for outcome in ("done", "abort", "retry"))
        settled = done + dead + again + rise(counting.PROCESSED, "snooze")
        return Reading(
            dead_letter_inflow=rise(counting.TERMINAL_FAILED) - rise(counting.TERMINAL_FAILED, *ON_PURPOSE),
            publish_failure_ratio=ratio(rise(counting.PUBLISHED, "error"), rise(counting.PUBLISHED)),
            handler_error_ratio=ratio(dead, done + dead),
            retry_ratio=ratio(again, settled),
            e2e_p95=_p95(now.histograms[counting.END_TO_END.name][""], before.histograms[counting.END_TO_END.name][""]),
            # The other fallbacks are those of clients, which alarm by themselves and name their queue.
            queue_fallback=rise(counting.FALLBACK, "best_effort"),
        )


def _p95(now: HistogramBuckets, before: HistogramBuckets) -> float | None:
    up_to = [new - old for new, old in zip(now.up_to, before.up_to, strict=True)]
    return percentile(0.95, counting.END_TO_END.edges, up_to, now.number - before.number)


def with_database(reading: Reading, store: Store, *, stuck_after: float) -> Reading:
    """Returns a reading with the values that come from the database. Raises StoreError."""
    lag = store.statistics.lag(stuck_after=stuck_after)
    dead, age = store.alerts.unwanted_dead() if lag.dead else (0, 0.0)
    return msgspec.structs.replace(
        reading,
        dead_letters=dead,
        dead_letter_age=age,
        oldest_age=lag.oldest,
        lag=lag.due,
        stuck=lag.stuck,
        projection_stopped=sum(row.state == "stopped" for row in store.projections.list()),
        capture_stopped=sum(row.is_down for row in store.captures.list()),
    )


class Alerts:
    """Checks all alerts of one daemon, and sends them to the sinks. Not thread-safe; a check blocks."""

    def __init__(
        self,
        store: Store,
        settings: Alerting,
        sinks: Sequence[Sink],
        dumps: Callable[[], Iterable[bytes]],
        *,
        database: str,
        stuck_after: float,
    ) -> None:
        self._store = store
        self._settings = settings
        self._sinks = {sink.name: sink for sink in sinks}
        self._numbers = CounterWindow(dumps)
        self._database = database
        self._stuck_after = stuck_after
        self._own = MemoryAlertStates()

    def look(self) -> None:
        """Checks once, and sends the alerts that are due."""
        counted = self._numbers.reading()
        try:
            reading = with_database(counted, self._store, stuck_after=self._stuck_after)
            self._send_due(self._store.alerts, find_raised(reading, self._settings.thresholds))
            self._send_due(self._own, {})
        except StoreError:  # the guardrail logs that the database is unavailable
            self._send_due(self._own, find_raised(counted, self._settings.thresholds))

    def _send_due(self, keeping: AlertStates, found: Mapping[Name, Raised]) -> None:
        settings = self._settings
        quiet = _CHECKS_UNTIL_OVER * settings.interval_sec
        for telling in keeping.take(found, tuple(self._sinks), quiet=quiet, remind=settings.remind_sec):
            if send_alert(self._sinks[telling.standing.sink], telling, self._database):
                keeping.record_sent(telling, remind=settings.remind_sec)


def send_alert(sink: Sink, telling: DueAlert, database: str) -> bool:
    """Sends an alert to one sink. False: it failed, and is sent again when its lease has ended."""
    try:
        sink.send(build_notice(telling, database))
    except Exception as error:  # noqa: BLE001 - third-party servers and clients may raise anything
        Log(alert=telling.standing.name, sink=sink.name).error("ALERT_NOT_TOLD", error_type=type(error).__name__)
        return False
    return True
