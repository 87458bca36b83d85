"""Bulk acts: replay, run again, cancel or purge many deliveries, in a thread beside the request that starts them.

What runs is `operations`, batch by batch, each batch audited in its own transaction; this adds the thread, its progress
and a way to stop it. Acts are kept in the memory of the process that runs them, the ended ones for a while, so that a
page can be loaded again. If the process ends, an act stops between two batches; the audit says how far it came.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal, assert_never
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere, TodokuError
from todoku.engine import operations
from todoku.engine.observability.log import Log
from todoku.engine.operations import ActResult, Replayed
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.repetition import RouteTo
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.deliveries import Filter

AT_ONCE: Final = 2
"""Acts that run at the same time in one process; others wait for their turn."""

MOST_WAITING: Final = 20
KEPT: Final = 100
"""Ended acts that are remembered."""

_COUNTED_AGAIN: Final = 1000
"""Successes that a preview counts: they are read with their messages."""

_A_MOMENT: Final = 0.001
"""`Filter.until` leaves its own moment out; an act takes what was there when it was asked for."""

ActName = Literal["replay", "again", "cancel", "purge"]
ActState = Literal["waiting", "running", "finished", "stopped", "failed"]

_STATUSES: Final[dict[ActName, tuple[str, ...]]] = {
    "replay": ("aborted",),
    "again": ("succeeded",),
    "cancel": ("pending", "failed", "sending"),
    "purge": ("aborted",),
}
"""The statuses that an act applies to."""


class ActPreview(msgspec.Struct, frozen=True):
    """How many deliveries an act would change now (None: more than are counted), and why it would pass over others."""

    number: int | None
    skipped: dict[str, int] = {}


class BulkAct(msgspec.Struct, frozen=True, kw_only=True):
    """An act on many deliveries, and how far it is. `total` is what a preview counted; None: more than are counted."""

    id: UUID
    act: ActName
    selected: tuple[str, ...]
    """The filter, as `name:value`."""
    by: str
    why: str
    limit: int | None
    rate: float | None
    state: ActState
    total: int | None
    done: int = 0
    skipped: dict[str, int] = {}
    error: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it changes nothing any more."""
        return self.state not in ("waiting", "running")


class _Order(msgspec.Struct, frozen=True):
    id: UUID
    act: ActName
    which: Filter
    signed: Signed
    limit: int | None
    rate: float | None
    stop: threading.Event


class BulkActs:
    """The bulk acts of one process."""

    def __init__(self, outbox: Outbox, route_to: RouteTo) -> None:
        self._outbox = outbox
        self._route_to = route_to
        self._lock = threading.Lock()
        self._acts: dict[UUID, BulkAct] = {}
        self._orders: dict[UUID, _Order] = {}
        self._waiting: deque[_Order] = deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def preview(self, act: ActName, which: Filter, *, limit: int | None = None) -> ActPreview:
        """Counts what an act would change, without changing or locking anything that a filter selects. Blocks."""
        which, store = _narrowed(act, which), self._outbox.store
        unsigned = Signed("", "")  # nothing is changed, and nothing audited
        if act == "again":
            most = min(limit or _COUNTED_AGAIN, _COUNTED_AGAIN)
            found = operations.repeat(
                self._outbox, which, unsigned, route_to=self._route_to, limit=most, dry_run=True
            )  # fmt: skip
            counted = found.replayed if found.replayed < _COUNTED_AGAIN else None
            return ActPreview(_at_most(counted, limit), found.skipped)
        if which.ids is not None:
            result = _result(self._perform(act, which, unsigned, limit=limit, dry_run=True))
            return ActPreview(result.changed, result.skipped)
        return ActPreview(_at_most(operations.count_matching(store, which, _STATUSES[act]), limit))

    def start(
        self,
        act: ActName,
        which: Filter,
        signed: Signed,
        *,
        limit: int | None = None,
        rate: float | None = None,
        selected: tuple[str, ...] = (),
    ) -> BulkAct:
        """Starts an act on what matches now, or lets it wait for its turn. Blocks for the count and the audit entry.

        `selected` describes the filter, if its fields do not. InvalidAct: too many wait already.
        """
        counted, store = self.preview(act, which, limit=limit), self._outbox.store
        now = store.ping()
        id, until = new_id(), moment(now + _A_MOMENT)
        narrowed = _narrowed(act, which)
        if which.ids is None and which.until is None:
            narrowed = msgspec.structs.replace(narrowed, until=until)
        order = _Order(id, act, narrowed, signed, limit, rate, threading.Event())
        made = BulkAct(
            id=id, act=act, selected=selected or _describe(which), by=signed.by, why=signed.why, limit=limit, rate=rate,
            state="waiting", total=counted.number, created_at=moment(now),
        )  # fmt: skip
        self._refuse_too_many()
        store.audit.record(signed, f"start {act} of {_of(counted.number)}", [f"act:{id}"])
        with self._lock:
            self._acts[id], self._orders[id] = made, order
            self._waiting.append(order)
            self._forget()
            if len(self._threads) < AT_ONCE:
                thread = threading.Thread(target=self._run, name="todoku-bulk-act", daemon=True)
                self._threads.add(thread)
                thread.start()
        return made

    def list(self) -> tuple[BulkAct, ...]:
        """Every act that is remembered, the newest first."""
        with self._lock:
            return tuple(reversed(self._acts.values()))

    def get(self, id: UUID) -> BulkAct:
        """Returns one act. NotThere: it is not remembered, or another process runs it."""
        with self._lock:
            if (found := self._acts.get(id)) is not None:
                return found
        raise NotThere(f"there is no act {id} here", hint="the audit records when it was started and ended")

    def stop(self, id: UUID, signed: Signed) -> BulkAct:
        """Stops an act after the batch that it is in, audited. Returns it as it is now; one that ended stays as it is.

        NotThere: as of `get`.
        """
        if (found := self.get(id)).has_ended:
            return found
        self._outbox.store.audit.record(signed, f"stop {found.act}", [f"act:{id}"])
        with self._lock:
            if (order := self._orders.get(id)) is not None:  # None: it has ended meanwhile
                order.stop.set()
        return self.get(id)

    def close(self, within: float = 1.5) -> None:
        """Stops all acts between two batches, and waits for their threads for this many seconds in all."""
        until = time.monotonic() + within
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for order in self._orders.values():
                order.stop.set()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    # ------------------------------------------------------------------------------------------- inside

    def _refuse_too_many(self) -> None:
        with self._lock:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                told = "this process is stopping" if self._closed else f"{MOST_WAITING} acts wait already"
                raise InvalidAct(told, hint="try again later, or stop one of them")

    def _forget(self) -> None:
        """Drops the oldest ended acts."""
        ended = [id for id, act in self._acts.items() if act.has_ended]
        for id in ended[: max(0, len(ended) - KEPT)]:
            del self._acts[id]

    def _run(self) -> None:
        """The thread: one act after the other, until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.discard(threading.current_thread())
                    return
                order = self._waiting.popleft()
            self._carry_out(order)

    def _carry_out(self, order: _Order) -> None:
        store = self._outbox.store
        state: ActState = "failed"
        error: str | None = None
        try:
            self._change(order.id, state="running", started_at=moment(store.ping()))
            result = _result(self._perform_order(order))
            self._change(order.id, done=result.changed, skipped=result.skipped)
            state = "stopped" if order.stop.is_set() else "finished"
        except TodokuError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - the page and the log say it; the thread goes on
            error = f"unexpected error {type(failure).__name__}; the log has the details"
            Log(part="bulk_act").error("BULK_ACT_FAILED", act=str(order.id), error=repr(failure))
        self._end(order, state, error)

    def _end(self, order: _Order, state: ActState, error: str | None) -> None:
        """Writes the last audit entry, then shows the act as ended: who sees the end finds it in the audit."""
        store, act = self._outbox.store, self.get(order.id)
        action = f"end {act.act}, {state}: {act.done} of {_of(act.total)}"
        ended_at: datetime | None = None
        try:
            store.audit.record(order.signed, action, [f"act:{act.id}"])
            ended_at = moment(store.ping())
        except TodokuError as failure:  # the entries of the deliveries are there, and say how far it came
            Log(part="bulk_act").error("BULK_ACT_END_NOT_AUDITED", act=str(act.id), done=act.done, error=str(failure))
        with self._lock:
            self._orders.pop(order.id, None)
        self._change(order.id, state=state, error=error, ended_at=ended_at)

    def _change(self, id: UUID, **changes: object) -> None:
        with self._lock:
            self._acts[id] = msgspec.structs.replace(self._acts[id], **changes)

    def _perform_order(self, order: _Order) -> ActResult | Replayed:
        def progress(number: int) -> None:
            self._change(order.id, done=number)
            self._outbox.wake()

        return self._perform(
            order.act, order.which, order.signed,
            limit=order.limit, rate=order.rate, progress=progress, stop=order.stop,
        )  # fmt: skip

    def _perform(
        self,
        act: ActName,
        which: Filter,
        signed: Signed,
        *,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> ActResult | Replayed:
        store = self._outbox.store
        perform: Callable[..., ActResult | Replayed]
        match act:
            case "replay":
                perform = operations.replay
            case "cancel":
                perform = operations.cancel
            case "purge":
                perform = operations.purge
            case "again":
                return operations.repeat(
                    self._outbox, which, signed, route_to=self._route_to,
                    limit=limit, rate=rate, dry_run=dry_run, progress=progress, stop=stop,
                )  # fmt: skip
            case _:
                assert_never(act)
        return perform(
            store, which, signed, limit=limit, rate=rate, dry_run=dry_run, progress=progress, stop=stop
        )  # fmt: skip


def _result(result: ActResult | Replayed) -> ActResult:
    if isinstance(result, Replayed):
        return ActResult(result.matched, result.replayed, result.skipped)
    return result


def _narrowed(act: ActName, which: Filter) -> Filter:
    """The filter with the only status that the act applies to, which an index answers. Named ids stay as they are."""
    if which.ids is not None or which.status is not None or act in ("cancel", "again"):
        return which
    return msgspec.structs.replace(which, status="aborted")


def _describe(which: Filter) -> tuple[str, ...]:
    """The fields of a filter as `name:value`; of ids only how many."""
    empty, found = Filter(), list[str]()
    for name in which.__struct_fields__:
        if (value := getattr(which, name)) == getattr(empty, name):
            continue
        if name == "ids":
            found.append(f"ids:{','.join(map(str, value[:5]))}{f'… ({len(value)})' if len(value) > 5 else ''}")
        else:
            found.append(f"{name}:{value.isoformat() if isinstance(value, datetime) else value}")
    return tuple(found)


def _at_most(number: int | None, limit: int | None) -> int | None:
    return limit if number is None else number if limit is None else min(number, limit)


def _of(number: int | None) -> str:
    return "many" if number is None else str(number)
