"""The workers of a database: what each runs, draining one from afar, and the stacks of its handlers.

The one module behind the command line, the HTTP API and the web. A request stands in the worker's row; the worker's
heartbeat obeys it within about two seconds, wherever it runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.engine.worker.handler_stacks import HandlerStacks
from todoku.store.audit import Signed
from todoku.store.leases import HeldDelivery, WorkerRow
from todoku.store.store import Store

WorkerStatus = Literal["running", "idle", "draining", "drained", "expired"]
"""`drained`: an operator drained it, and it holds nothing. `expired`: its lease has ended and was not reclaimed yet."""

_NAME: Final = re.compile(r"(?P<host>.+):(?P<pid>[0-9]+)", re.DOTALL)
_ANSWER_SEC: Final = 6.0
"""Seconds to wait for a worker's stacks: it reads its requests about once a second."""
_LOOK_EVERY: Final = 0.1


class RunningWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's lease, and the deliveries that it has held longest.

    `host` and `pid` are those of its name, if it has the usual one. `lease_left`: seconds until the lease ends, unless
    it is renewed.
    """

    lease: WorkerRow
    status: WorkerStatus
    host: str | None
    pid: int | None
    lease_left: float
    holds: tuple[HeldDelivery, ...]
    now: datetime

    @property
    def is_alive(self) -> bool:
        """Whether its lease has not ended."""
        return self.status != "expired"


class TakenStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a worker to the request `request`; None: it has not answered."""

    request: int
    stacks: HandlerStacks | None
    at: datetime | None


def list_workers(store: Store, *, most: int = 5, only: UUID | None = None) -> tuple[RunningWorker, ...]:
    """Returns all workers, or one of them, each with at most `most` of the deliveries it holds."""
    now = store.ping()
    rows = [row for row in store.leases.workers() if only in (None, row.id)]
    held: dict[UUID, list[HeldDelivery]] = {}
    for one in store.leases.held_by([row.id for row in rows], most=most):
        held.setdefault(one.worker, []).append(one)
    return tuple(_worker(row, tuple(held.get(row.id, ())), now) for row in rows)


def find_worker(store: Store, name_or_id: str) -> UUID:
    """Returns the id of the live worker with this id or name. NotThere, or InvalidAct if several have the name."""
    now = store.ping()
    alive = [row for row in store.leases.workers() if row.expires_at.timestamp() > now]
    found = [row for row in alive if name_or_id in (str(row.id), row.name)]
    if not found:
        raise NotThere(f"there is no live worker {name_or_id!r}", hint="`todoku workers` lists them")
    if len(found) > 1:
        ids = ", ".join(str(row.id) for row in found)
        raise InvalidAct(f"{len(found)} workers are called {name_or_id!r}", hint=f"give the id: {ids}")
    return found[0].id


def drain(store: Store, worker: UUID, signed: Signed) -> None:
    """Asks a worker to claim nothing until it is resumed or restarted.

    It gives back what has not started and lets what runs end, as at SIGTERM, but its process and its lease stay: its
    supervisor does not replace it. NotThere: its lease has ended.
    """
    if not store.leases.request_drain(worker, signed, drain=True):
        raise _gone(worker)


def resume(store: Store, worker: UUID, signed: Signed) -> None:
    """Lets a drained worker claim again. NotThere: its lease has ended."""
    if not store.leases.request_drain(worker, signed, drain=False):
        raise _gone(worker)


def ask_stacks(
    store: Store,
    worker: UUID,
    signed: Signed,
    *,
    wait: float = _ANSWER_SEC,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TakenStacks:
    """Asks a worker for the stacks of the handlers it runs now, and waits for its answer for at most `wait` seconds.

    NotThere: its lease has ended. An answer without stacks: it did not come in time; `read_stacks` may find it later.
    """
    if (request := store.leases.request_stacks(worker, signed)) is None:
        raise _gone(worker)
    until = monotonic() + wait
    while True:
        found = read_stacks(store, worker)
        is_answered = found.stacks is not None and found.request == request
        if is_answered or monotonic() >= until:
            return found if is_answered else TakenStacks(request=request, stacks=None, at=None)
        sleep(_LOOK_EVERY)  # the worker may be on another machine: only the database is shared


def read_stacks(store: Store, worker: UUID) -> TakenStacks:
    """Returns the last stacks of a worker, which are stored for a minute. NotThere: its lease has ended."""
    if (found := store.leases.stacks(worker)) is None:
        raise _gone(worker)
    if found.text is None or found.answered is None:
        return TakenStacks(request=found.request, stacks=None, at=None)
    return TakenStacks(request=found.answered, stacks=msgspec.json.decode(found.text, type=HandlerStacks), at=found.at)


def _gone(worker: UUID) -> NotThere:
    return NotThere(f"there is no live worker {worker}", hint="its lease has ended; `todoku workers` lists the others")


def _worker(row: WorkerRow, holds: tuple[HeldDelivery, ...], now: float) -> RunningWorker:
    named = _NAME.fullmatch(row.name)
    return RunningWorker(
        lease=row,
        status=_status(row, now),
        host=None if named is None else named["host"],
        pid=None if named is None else int(named["pid"]),
        lease_left=round(row.expires_at.timestamp() - now, 3),
        holds=holds,
        now=datetime.fromtimestamp(now, row.expires_at.tzinfo),
    )


def _status(row: WorkerRow, now: float) -> WorkerStatus:
    if row.expires_at.timestamp() <= now:
        return "expired"
    if row.drain_requested:
        return "draining" if row.held else "drained"
    match row.state:
        case "idle" | "draining":
            return row.state
        case _:
            return "running"
