"""Alerts shared by all daemons on one database: one row for each alert and sink, so that one daemon sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from todoku.core.alert import NAMES, AlertStanding, DueAlert, Forget, Keep, Name, Raised, new_standing, step
from todoku.store.columns import moment, moment_or_none
from todoku.store.database import Database, Tx

EACH_END: Final = 10_000
"""Number of dead letters read from each end of the table."""


class AlertStore:
    """The alerts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(
        self, found: Mapping[Name, Raised], sinks: Sequence[str], *, quiet: float, remind: float
    ) -> tuple[DueAlert, ...]:
        """Records the alerts this daemon sees, and returns those it must send; other daemons skip them for a lease."""
        return self._database.write("take_alerts", lambda tx: _take(tx, found, sinks, quiet, remind))

    def record_sent(self, telling: DueAlert, *, remind: float) -> None:
        """Records that an alert was sent. No effect if another daemon has taken it meanwhile."""
        name, sink, tries = telling.standing.name, telling.standing.sink, telling.standing.tries

        def work(tx: Tx) -> None:
            if telling.kind == "over":
                tx.rows("forget_alert", name=name, sink=sink, tries=tries)
            else:
                tx.rows("told_alert", name=name, sink=sink, tries=tries, remind=remind)

        self._database.write("told_alert", work)

    def unwanted_dead(self) -> tuple[int, float]:
        """Returns the number of dead letters that need attention, and the age of the oldest in seconds.

        Deliveries that an operator cancelled or settled by hand do not count. Beyond 20,000 dead letters only those
        published first and last are read.
        """
        ((number, age),) = self._database.read(lambda tx: tx.rows("unwanted_dead", most=EACH_END))
        return number, float(age or 0.0)

    def rows(self) -> tuple[AlertStanding, ...]:
        """All alerts, by name and sink."""
        return tuple(standing for standing, _ in map(_row, self._database.read(lambda tx: tx.rows("alerts"))))


def _take(
    tx: Tx, found: Mapping[Name, Raised], sinks: Sequence[str], quiet: float, remind: float
) -> tuple[DueAlert, ...]:
    """Locks rows in key order. If two daemons raise a new alert at once, the second finds the row of the first."""
    now = float(tx.rows("clock")[0][0])
    for name in sorted(found):
        for sink in sorted(sinks):
            tx.rows("begin_alert", **_values(new_standing(found[name], sink, now)))
    telling: list[DueAlert] = []
    for known, now in map(_row, tx.rows("lock_alerts")):
        if known.name not in NAMES or known.sink not in sinks:  # of another version, or of a sink not configured here
            continue
        match step(known, found.get(known.name), now, quiet=quiet, remind=remind):
            case Forget():
                tx.rows("forget_alert", name=known.name, sink=known.sink, tries=known.tries)
            case Keep(standing, told):
                if standing != known:
                    tx.rows("write_alert", **_values(standing))
                telling += [] if told is None else [told]
    return tuple(telling)


def _values(standing: AlertStanding) -> dict[str, Any]:
    return {
        "name": standing.name,
        "sink": standing.sink,
        "since": moment(standing.since),
        "seen_at": moment(standing.seen_at),
        "next_at": moment(standing.next_at),
        "told_at": moment_or_none(standing.told_at),
        "ended": standing.over,
        "tries": standing.tries,
        "value": standing.value,
        "threshold": standing.threshold,
    }


def _row(row: Any) -> tuple[AlertStanding, float]:
    """A row, and the database's clock when it was read."""
    name, sink, since, seen_at, next_at, told_at, ended, tries, value, threshold, now = row
    standing = AlertStanding(
        name=cast("Name", name),
        sink=sink,
        since=float(since),
        seen_at=float(seen_at),
        next_at=float(next_at),
        told_at=None if told_at is None else float(told_at),
        over=bool(ended),
        tries=tries,
        value=float(value),
        threshold=float(threshold),
    )
    return standing, float(now)
