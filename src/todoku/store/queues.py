"""Queues: paused or not, and those configured over HTTP: named queues (`http:`) and flow control keys (`flow:`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from todoku.core.identity import lane_id
from todoku.core.msgspec_warmup import warm_up
from todoku.store.audit import Signed
from todoku.store.columns import moment, moment_or_none
from todoku.store.database import Database, Tx

Kind = Literal["http:", "flow:"]
"""The prefixes of the names of QStash queues and of flow control keys."""

COUNTED: Final = 100_000
"""Waiting deliveries are counted up to this number."""


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration of a queue or flow key. A pinned value overrides the publishers' values."""

    parallelism: int | None = None
    rate: int | None = None
    period: float = 1.0
    pinned_parallelism: int | None = None
    pinned_rate: int | None = None
    pinned_period: float | None = None
    implicit: bool = False
    """Created by a publish and never configured: retention may remove it once it is unused."""


warm_up(QueueSpec)


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored queue. `concurrency` and `rate` (a second) are in force; no delivery starts before `paced_until`."""

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    spec: QueueSpec
    created_at: datetime | None
    updated_at: datetime
    paced_until: float | None
    now: float


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The new state of a queue."""

    paused: bool
    concurrency: int | None
    rate: float | None
    spec: QueueSpec


class Load(msgspec.Struct, frozen=True):
    """How many deliveries of a queue wait, and how many run."""

    waiting: int
    running: int


class QueueStore:
    """The queues of one database. Every call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, name: str, signed: Signed, *, paused: bool) -> None:
        """Pauses or resumes a queue: effective for claims after the commit."""

        def work(tx: Tx) -> None:
            tx.rows("set_queue", name=name, paused=paused)
            action = "pause" if paused else "resume"
            tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"queue:{name}"])
            self._database.announce_limits(tx)

        self._database.write("set_queue", work)

    def get(self, name: str) -> QueueRow | None:
        """A queue that was created over HTTP, by its whole name; None: there is none."""
        rows = self._database.read(lambda tx: tx.rows("http_queue", name=name))
        return next((row for row in map(_queue, rows) if row.created_at is not None), None)

    def page(self, kind: Kind, *, search: str | None = None, limit: int = 1000) -> tuple[QueueRow, ...]:
        """All of a kind, by name; with `search`, those whose name contains it."""
        rows = self._database.read(lambda tx: tx.rows("http_queues", kind=kind, search=search, most=limit))
        return tuple(map(_queue, rows))

    def change(
        self,
        name: str,
        decide: Callable[[QueueRow | None], QueueState | None],
        signed: Signed | None = None,
        *,
        action: str = "",
    ) -> QueueRow | None:
        """Calls `decide` with the queue's row locked, and stores the state it returns; None: no change.

        Returns the queue as it was before. Audited if `signed` is given.
        """

        def work(tx: Tx) -> QueueRow | None:
            before = _lock(tx, name)
            if (state := decide(before)) is None:
                return before
            if before is None:
                tx.rows("make_queue", name=name)
                before = _lock(tx, name)  # another process may have created it meanwhile
                state = decide(before) or state
            tx.rows("put_queue", name=name, **_fields(state))
            if signed is not None:
                tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"queue:{name}"])
            return before

        return self._database.write("put_queue", work)

    def remove(self, name: str, signed: Signed) -> bool:
        """Removes the configuration of a queue; its deliveries still run. False: there was none."""

        def work(tx: Tx) -> bool:
            gone = bool(tx.rows("remove_queue", name=name))
            if gone:
                tx.rows("audit", by=signed.by, why=signed.why, action="remove", targets=[f"queue:{name}"])
            return gone

        return self._database.write("put_queue", work)

    def reset_rate(self, name: str, signed: Signed) -> bool:
        """Lets the next delivery of a queue start now, regardless of its rate. False: there is no such queue."""

        def work(tx: Tx) -> bool:
            if found := bool(tx.rows("reset_rate", name=name)):
                tx.rows("audit", by=signed.by, why=signed.why, action="reset rate", targets=[f"queue:{name}"])
            return found

        return self._database.write("put_queue", work)

    def loads(self, names: Sequence[str]) -> dict[str, Load]:
        """The loads of queues, by their whole names; counted up to COUNTED each."""
        places = [{"name": name, "lane": lane_id("http", name)} for name in names]
        rows = self._database.read(lambda tx: tx.rows("queue_loads", places=places, most=COUNTED)) if places else []
        return {name: Load(waiting, running) for name, waiting, running in rows}

    def count_running(self) -> tuple[int, int]:
        """How many requests are being sent at this moment, and how many workers are alive."""
        ((running, workers),) = self._database.read(lambda tx: tx.rows("http_running"))
        return running, workers


def _lock(tx: Tx, name: str) -> QueueRow | None:
    return next(map(_queue, tx.rows("lock_queue", name=name)), None)


def _fields(state: QueueState) -> dict[str, Any]:
    return msgspec.structs.asdict(state) | {"spec": _json(state.spec)}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _queue(row: Any) -> QueueRow:
    name, paused, concurrency, rate, spec, created, updated, paced_until, now = row
    return QueueRow(
        name=name,
        paused=bool(paused),
        concurrency=concurrency,
        rate=rate,
        spec=QueueSpec() if spec is None else msgspec.json.decode(spec, type=QueueSpec),
        created_at=moment_or_none(created),
        updated_at=moment(updated),
        paced_until=paced_until,
        now=float(now),
    )
