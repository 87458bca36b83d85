"""Alerts: a daemon looks at its numbers and at the database, and tells people what is wrong, once for all daemons.

What is known of an alert is in the database, so exactly one daemon tells it, and another if that one dies. While the
database does not answer, each daemon tells for itself what its own counters say: that is when it matters most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from todoku.core.alert import (
    WINDOW,
    AlertStanding,
    Forget,
    Keep,
    Name,
    Raised,
    Reading,
    Telling,
    begun,
    percentile,
    raised,
    ratio,
    step,
)
from todoku.core.alert_settings import Alerting
from todoku.core.errors import StoreError
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.alert_sinks import Sink, news
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Counter, HistogramBuckets, Snapshot, empty, merged
from todoku.store.store import Store

ON_PURPOSE: Final = ("CANCELLED", "BY_HAND")
"""Reasons of dead letters that a person wanted dead: no news for the one who did it."""

_QUIET: Final = 4
"""An alert that nobody has seen for so many looks is over."""


class Keeping(Protocol):
    """Where it is known who was told of what: the database (`Store.alerts`), or this process alone (`Own`)."""

    def take(
        self, found: Mapping[Name, Raised], sinks: Sequence[str], *, quiet: float, remind: float
    ) -> tuple[Telling, ...]:
        """Say what is seen now, and get what is to be told here."""

    def told(self, telling: Telling, *, remind: float) -> None:
        """It has been told."""


class Own:
    """What this process knows of alerts by itself. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: dict[tuple[Name, str], AlertStanding] = {}

    def take(
        self, found: Mapping[Name, Raised], sinks: Sequence[str], *, quiet: float, remind: float
    ) -> tuple[Telling, ...]:
        """As Keeping."""
        now = self._clock()
        for name, one in found.items():
            for sink in sinks:
                self._known.setdefault((name, sink), begun(one, sink, now))
        telling: list[Telling] = []
        for place, known in list(self._known.items()):
            match step(known, found.get(known.name), now, quiet=quiet, remind=remind):
                case Forget():
                    del self._known[place]
                case Keep(standing, told):
                    self._known[place] = standing
                    telling += [] if told is None else [told]
        return tuple(telling)

    def told(self, telling: Telling, *, remind: float) -> None:
        """As Keeping."""
        known, now = telling.standing, self._clock()
        place = (known.name, known.sink)
        if telling.kind == "over":
            self._known.pop(place, None)
        else:
            self._known[place] = msgspec.structs.replace(known, told_at=now, next_at=now + remind)


class Numbers:
    """What a daemon's own counters did in the last five minutes."""

    def __init__(self, dumps: Callable[[], Iterable[bytes]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._dumps = dumps
        self._monotonic = monotonic
        self._seen: deque[tuple[float, Snapshot]] = deque([(monotonic(), empty())])

    def reading(self) -> Reading:
        """The alerts that counters are enough for."""
        at, now = self._monotonic(), merged(self._dumps())
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
            queue_fallback=rise(counting.FALLBACK),
        )


def _p95(now: HistogramBuckets, before: HistogramBuckets) -> float | None:
    up_to = [new - old for new, old in zip(now.up_to, before.up_to, strict=True)]
    return percentile(0.95, counting.END_TO_END.edges, up_to, now.number - before.number)


def with_database(reading: Reading, store: Store, *, stuck_after: float) -> Reading:
    """A reading with what only the database knows. StoreError: it does not say."""
    lag = store.statistics.lag(stuck_after=stuck_after)
    dead, age = store.alerts.unwanted_dead() if lag.dead else (0, 0.0)
    return msgspec.structs.replace(
        reading,
        dead_letters=dead,
        dead_letter_age=age,
        oldest_age=lag.oldest,
        lag=lag.due,
        stuck=lag.stuck,
    )


class Alerts:
    """One daemon's look at everything that may be wrong, and whom it tells. Not thread-safe; a look blocks."""

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
        self._numbers = Numbers(dumps)
        self._database = database
        self._stuck_after = stuck_after
        self._own = Own()

    def look(self) -> None:
        """Look once, and tell what there is to tell."""
        counted = self._numbers.reading()
        try:
            reading = with_database(counted, self._store, stuck_after=self._stuck_after)
            self._tell(self._store.alerts, raised(reading, self._settings.thresholds))
            self._tell(self._own, {})
        except StoreError:  # the guardrail logs that the database is away
            self._tell(self._own, raised(counted, self._settings.thresholds))

    def _tell(self, keeping: Keeping, found: Mapping[Name, Raised]) -> None:
        settings = self._settings
        quiet = _QUIET * settings.interval_sec
        for telling in keeping.take(found, tuple(self._sinks), quiet=quiet, remind=settings.remind_sec):
            if tell(self._sinks[telling.standing.sink], telling, self._database):
                keeping.told(telling, remind=settings.remind_sec)


def tell(sink: Sink, telling: Telling, database: str) -> bool:
    """Tell one sink. Whether it was told; if not, it is told again when its lease is over."""
    try:
        sink.tell(news(telling, database))
    except Exception as error:  # noqa: BLE001 - servers of others, and clients of others
        Log(alert=telling.standing.name, sink=sink.name).error("ALERT_NOT_TOLD", error_type=type(error).__name__)
        return False
    return True
