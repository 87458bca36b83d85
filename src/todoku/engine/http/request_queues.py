"""Queues of HTTP requests, which limit how many messages run at once. With parallelism 1, a queue is a lane (I10).

The first use creates a queue with parallelism 1. Messages enqueued while it was 1 stay in order after a change; later
ones follow the new parallelism, which limits both together.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.limit import FASTEST
from todoku.engine.http.names import check_name
from todoku.store.audit import Signed
from todoku.store.queues import QueueRow, QueueSpec, QueueState
from todoku.store.store import Store

KIND: Final = "http:"
TOUCH_INTERVAL: Final = 3600.0
"""Seconds after which the time of the last use is written again. Queues unused for a week are removed."""


class RequestQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue. `lag`: the number of waiting messages."""

    name: str
    parallelism: int
    paused: bool
    lag: int
    created_at: datetime
    updated_at: datetime


def ensure(store: Store, name: str) -> int:
    """Returns the parallelism of a queue; creates it with 1 if missing. Reads first: the usual case writes nothing."""
    stored_name = f"{KIND}{check_name(name, 'queue')}"
    if (row := store.queues.get(stored_name)) is not None and not _is_touch_due(row):
        return row.spec.parallelism or 1

    def decide(row: QueueRow | None) -> QueueState | None:
        if row is None or row.created_at is None:
            spec = QueueSpec(parallelism=1, implicit=True)
            return QueueState(paused=row is not None and row.paused, concurrency=None, rate=None, spec=spec)
        if not _is_touch_due(row):
            return None
        return QueueState(paused=row.paused, concurrency=row.concurrency, rate=row.rate, spec=row.spec)

    before = store.queues.change(stored_name, decide)
    return 1 if before is None else before.spec.parallelism or 1


def upsert(
    store: Store, name: str, signed: Signed, *, parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Creates or changes a queue. None: unchanged; for a new queue 1 and not paused."""
    stored_name = f"{KIND}{check_name(name, 'queueName')}"
    if parallelism is not None and not (type(parallelism) is int and 0 < parallelism <= FASTEST):
        raise InvalidMessage(f"parallelism cannot be {parallelism!r}", hint="use a whole number, 1 or more")

    def decide(row: QueueRow | None) -> QueueState:
        before = row.spec.parallelism if row is not None else None
        now = parallelism or before or 1
        return QueueState(
            paused=paused if paused is not None else row is not None and row.paused,
            concurrency=_limit(now, before),
            rate=None if row is None else row.rate,
            spec=QueueSpec(parallelism=now),
        )

    store.queues.change(stored_name, decide, signed, action=f"parallelism {parallelism}" if parallelism else "put")


def pause(store: Store, name: str, signed: Signed, *, paused: bool) -> None:
    """Pauses or resumes a queue; creates it if missing."""
    upsert(store, name, signed, paused=paused)


def get(store: Store, name: str) -> RequestQueue | None:
    """Returns one queue; None if it does not exist."""
    row = store.queues.get(f"{KIND}{check_name(name, 'queue')}")
    return None if row is None else _queues(store, (row,))[0]


def list_queues(store: Store) -> tuple[RequestQueue, ...]:
    """Returns all queues by name."""
    return _queues(store, store.queues.page(KIND))


def remove(store: Store, name: str, signed: Signed) -> bool:
    """Removes a queue; its waiting messages are delivered without its limit. Returns False if it does not exist."""
    return store.queues.remove(f"{KIND}{check_name(name, 'queue')}", signed)


def _limit(parallelism: int, before: int | None) -> int | None:
    """Returns the limit of a queue. A lane needs none, unless messages outside the lane may exist too."""
    return None if parallelism == 1 and before in (None, 1) else parallelism


def _is_touch_due(row: QueueRow) -> bool:
    return row.spec.implicit and row.now - row.updated_at.timestamp() > TOUCH_INTERVAL


def _queues(store: Store, rows: tuple[QueueRow, ...]) -> tuple[RequestQueue, ...]:
    loads = store.queues.loads([row.name for row in rows])
    return tuple(
        RequestQueue(
            name=row.name.removeprefix(KIND),
            parallelism=row.spec.parallelism or 1,
            paused=row.paused,
            lag=loads[row.name].waiting,
            created_at=row.created_at or row.updated_at,
            updated_at=row.updated_at,
        )
        for row in rows
    )
