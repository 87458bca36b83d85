"""How deep the queues are: what is due and what waits for its time, what runs, and the newest dead letters by reason.

Rows are counted up to a bound, so the cost does not depend on the depth.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from todoku.store.columns import moment
from todoku.store.database import Database, Tx

_COUNTED: Final = 10_000
"""Rows counted in all places together; each place has its share, and at least `_LEAST`."""
_LEAST: Final = 100

APART: Final = 10_000
"""Rows counted in lanes, at gates and of suspects."""

DEAD: Final = 10_000
"""Dead letters that are grouped by reason: the newest."""


class QueueDepth(msgspec.Struct, frozen=True):
    """Deliveries of a queue: `due` now, the `oldest` of them for that many seconds; `later`: waiting for their time.

    `exact` is False where counting stopped: there are at least so many.
    """

    queue: str
    due: int
    oldest: float
    later: int
    exact: bool


class _PartDepth(NamedTuple):
    """The depth of a part of a queue."""

    due: int
    oldest: float
    later: int
    exact: bool


class RunningPlace(msgspec.Struct, frozen=True):
    """How many deliveries of a queue to a destination run, and for how many seconds the first claimed of them."""

    queue: str
    destination: str
    number: int
    longest: float


class DeadReason(msgspec.Struct, frozen=True):
    """Dead letters of one reason, when the last of them changed, and the newest."""

    reason: str
    number: int
    last_at: datetime
    newest: int


class DepthStore:
    """The depths of the queues of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def queues(self) -> tuple[QueueDepth, ...]:
        """Every queue in which a delivery waits, by name."""
        return self._database.read(_queues)

    def running(self) -> tuple[RunningPlace, ...]:
        """What runs now, by queue and destination."""
        rows = self._database.read(lambda tx: tx.rows("running_places"))
        return tuple(RunningPlace(queue, to, number, float(longest)) for queue, to, number, longest in sorted(rows))

    def dead_reasons(self) -> tuple[DeadReason, ...]:
        """The newest `DEAD` dead letters by reason, the most frequent first."""
        rows = self._database.read(lambda tx: tx.rows("dead_reasons", most=DEAD))
        return tuple(DeadReason(reason, number, moment(last), newest) for reason, number, last, newest in rows)


def _queues(tx: Tx) -> tuple[QueueDepth, ...]:
    places = [
        {"queue": queue, "destination": destination, "priority": priority}
        for queue, destination, priority, _ in tx.rows("waiting", destinations=None)
    ]
    most = max(_LEAST, _COUNTED // max(1, len(places)))
    rows = tx.rows("depth_places", places=places, most=most) if places else []
    found: dict[str, list[_PartDepth]] = {}
    for queue, due, oldest, later in rows:
        found.setdefault(queue, []).append(_PartDepth(due, float(oldest), later, due < most and later < most))
    apart = tx.rows("depth_apart", most=APART)
    whole = sum(due + later for _, due, _, later in apart) < APART
    for queue, due, oldest, later in apart:
        found.setdefault(queue, []).append(_PartDepth(due, float(oldest), later, whole))
    return tuple(_depth(queue, found[queue]) for queue in sorted(found))


def _depth(queue: str, parts: list[_PartDepth]) -> QueueDepth:
    return QueueDepth(
        queue,
        due=sum(part.due for part in parts),
        oldest=max(part.oldest for part in parts),
        later=sum(part.later for part in parts),
        exact=all(part.exact for part in parts),
    )
