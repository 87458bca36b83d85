"""What was recorded, as people read it back: attempts with what was answered, acts of people, numbers over time."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from todoku.store.database import Database, Tx
from todoku.store.reading import attempt
from todoku.store.values import AttemptRow, AuditRow, moment

COUNTED_EXACTLY: Final = 200_000
"""Up to so many rows of a span are counted one by one; of more, evenly spread ones."""


class NumberedAudit(msgspec.Struct, frozen=True):
    """One act of a person, with its number: the cursor of a listing."""

    id: int
    act: AuditRow


class Point(msgspec.Struct, frozen=True):
    """What ended in one stretch of time: deliveries that succeeded, attempts that failed."""

    at: datetime
    succeeded: int
    failed: int


class Series(msgspec.Struct, frozen=True):
    """Stretches in order, those without anything too. `exact` is False where they were sampled."""

    points: tuple[Point, ...]
    exact: bool


class Records:
    """The records of one database. Nothing here changes anything."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def attempts(self, delivery_id: int) -> tuple[AttemptRow, ...]:
        """The failed attempts of a delivery, the oldest first."""
        return tuple(map(attempt, self._database.read(lambda tx: tx.rows("attempts", ids=[delivery_id]))))

    def audit(
        self,
        *,
        by: str | None = None,
        action: str | None = None,
        target: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[NumberedAudit, ...]:
        """Acts of people, the newest first, from before the one of that number on."""
        rows = self._database.read(
            lambda tx: tx.rows("audit_page", by=by, action=action, target=target, before=before, most=limit)
        )
        return tuple(NumberedAudit(id, AuditRow(moment(at), *rest)) for id, at, *rest in rows)

    def series(self, *, since: datetime, until: datetime, width: int) -> Series:
        """Numbers for each `width` seconds from `since` to `until`, both on its multiples. Cost: bounded."""
        # The blocks of a span are found by a BRIN index, which is read by a bitmap.
        return self._database.read(lambda tx: _series(tx, since, until, width), pinned=False)


def _series(tx: Tx, since: datetime, until: datetime, width: int) -> Series:
    ((about,),) = tx.rows("series_size", since=since, until=until)
    step = max(1, round(about / COUNTED_EXACTLY))
    if step == 1:
        found = tx.rows("series", since=since, until=until, width=width)
    else:
        found = tx.rows("series_sampled", since=since, until=until, width=width, step=step)
    succeeded = {int(at): int(number) for at, number in found}
    rows = tx.rows("series_failed", since=since, until=until, width=width, most=COUNTED_EXACTLY)
    failed = {int(at): int(number) for at, number in rows}
    starts = range(int(since.timestamp()), int(until.timestamp()), width)
    points = tuple(Point(moment(at), succeeded.get(at, 0), failed.get(at, 0)) for at in starts)
    return Series(points, exact=step == 1 and sum(failed.values()) < COUNTED_EXACTLY)
