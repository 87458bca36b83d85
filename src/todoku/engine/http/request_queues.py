"""Queues over HTTP: so many of their messages at once. One at a time is in order (I10): such a queue is a lane.

A queue comes into being by use, with parallelism 1. What was enqueued while it had 1 stays in its order; what comes
after a change is as the queue is then, and the new number holds for both together.
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
"""Seconds after which a use is written down again: what nobody has used for a week is forgotten."""


class RequestQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as people look at it. `lag`: so many of its messages wait."""

    name: str
    parallelism: int
    paused: bool
    lag: int
    created_at: datetime
    updated_at: datetime


def ensure(store: Store, name: str) -> int:
    """The parallelism of a queue, made with 1 if it is not there. Reads first: the usual case writes nothing."""
    whole = f"{KIND}{check_name(name, 'queue')}"
    if (row := store.queues.get(whole)) is not None and not _is_to_be_touched(row):
        return row.spec.parallelism or 1

    def decide(row: QueueRow | None) -> QueueState | None:
        if row is None or row.created_at is None:
            spec = QueueSpec(parallelism=1, implicit=True)
            return QueueState(paused=row is not None and row.paused, concurrency=None, rate=None, spec=spec)
        if not _is_to_be_touched(row):
            return None
        return QueueState(paused=row.paused, concurrency=row.concurrency, rate=row.rate, spec=row.spec)

    before = store.queues.change(whole, decide)
    return 1 if before is None else before.spec.parallelism or 1


def upsert(
    store: Store, name: str, signed: Signed, *, parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Make a queue, or change it; what is None stays (1, and not paused)."""
    whole = f"{KIND}{check_name(name, 'queueName')}"
    if parallelism is not None and not (type(parallelism) is int and 0 < parallelism <= FASTEST):
        raise InvalidMessage(f"parallelism cannot be {parallelism!r}", hint="a whole number, 1 or more")

    def decide(row: QueueRow | None) -> QueueState:
        before = row.spec.parallelism if row is not None else None
        now = parallelism or before or 1
        return QueueState(
            paused=paused if paused is not None else row is not None and row.paused,
            concurrency=_limit(now, before),
            rate=None if row is None else row.rate,
            spec=QueueSpec(parallelism=now),
        )

    store.queues.change(whole, decide, signed, action=f"parallelism {parallelism}" if parallelism else "put")


def pause(store: Store, name: str, signed: Signed, *, paused: bool) -> None:
    """Stop or go on taking from a queue; one that is not there is made."""
    upsert(store, name, signed, paused=paused)


def get(store: Store, name: str) -> RequestQueue | None:
    """One queue; None: there is none."""
    row = store.queues.get(f"{KIND}{check_name(name, 'queue')}")
    return None if row is None else _shown(store, (row,))[0]


def list_queues(store: Store) -> tuple[RequestQueue, ...]:
    """All of them, by name."""
    return _shown(store, store.queues.page(KIND))


def remove(store: Store, name: str, signed: Signed) -> bool:
    """Remove a queue; what waits in it is delivered all the same, no longer held back. False: there was none."""
    return store.queues.remove(f"{KIND}{check_name(name, 'queue')}", signed)


def _limit(parallelism: int, before: int | None) -> int | None:
    """A lane is one at a time by itself. Where there may be messages outside of it, the limit holds for both."""
    return None if parallelism == 1 and before in (None, 1) else parallelism


def _is_to_be_touched(row: QueueRow) -> bool:
    return row.spec.implicit and row.now - row.updated_at.timestamp() > TOUCH_INTERVAL


def _shown(store: Store, rows: tuple[QueueRow, ...]) -> tuple[RequestQueue, ...]:
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
