"""Leases: which worker owns deliveries, for how long, and what happens to them when it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import DatabaseBusy
from todoku.store import gates
from todoku.store.audit import Signed
from todoku.store.columns import moment, uuid
from todoku.store.database import Database, Tx
from todoku.store.endings import Endings

_AT_ONCE: Final = 5000
"""Orphans freed by one statement."""

OLD: Final = 1.0
"""Seconds after which a worker writes its claims by list out."""

WorkerState = Literal["running", "idle", "draining"]
"""What a worker's row says: it claims, it sleeps until it is woken, or it is shutting down."""


class Held(msgspec.Struct, frozen=True):
    """A delivery that a worker owns according to the database: a token good enough to release it (H3)."""

    id: int
    epoch: int
    cancel_requested: bool
    lane: int | None
    worker: UUID
    gate: int | None = None


class Reclaimed(msgspec.Struct, frozen=True):
    """Leases that ended, deliveries that were freed, deliveries that were aborted."""

    workers: int
    freed: int
    aborted: int


class WorkerRow(msgspec.Struct, frozen=True):
    """A lease, and how many deliveries it holds."""

    id: UUID
    name: str
    state: str
    started_at: datetime
    expires_at: datetime
    held: int
    slots: int | None = None
    """How many attempts it runs at once; None: an older todoku did not say."""
    version: str | None = None
    drain_requested: bool = False


class HeldDelivery(msgspec.Struct, frozen=True):
    """A delivery that a worker has held since `claimed_at`: it runs, or it waits for a slot of the worker."""

    worker: UUID
    id: int
    message_id: UUID
    topic: str
    destination: str
    queue: str
    attempt: int
    max_attempts: int
    claimed_at: datetime


class StoredStacks(msgspec.Struct, frozen=True):
    """The number of the last request for a worker's stacks, and its last answer: to which request, when, and its text.

    An answer is kept for a minute.
    """

    request: int
    answered: int | None = None
    text: str | None = None
    at: datetime | None = None


class LeaseStore:
    """The leases of all workers."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def register(
        self,
        worker: UUID,
        *,
        name: str,
        lease: float,
        slots: int | None = None,
        version: str | None = None,
        drained: bool = False,
    ) -> None:
        """Begins the lease of a new worker incarnation. The id must never have been used before.

        `drained`: an operator asked the incarnation before it to drain, and has not resumed it.
        """
        self._database.write(
            "register",
            lambda tx: tx.rows(
                "register", worker=worker, name=name, lease=lease, slots=slots, version=version, drained=drained
            ),
        )

    def renew(self, worker: UUID, *, lease: float) -> bool:
        """Extends a lease that has not ended. False: it has ended, and the worker owns nothing any more (I3)."""
        return self._database.write("renew", lambda tx: bool(tx.rows("renew", worker=worker, lease=lease)))

    def set_state(self, worker: UUID, state: WorkerState) -> None:
        """Writes what a worker does, without renewing its lease. Publishers notify while a worker is "idle"."""
        self._database.write_alone("set_state", lambda tx: tx.rows("set_state", worker=worker, state=state))

    def owned(self, worker: UUID, *, fresh: bool = False) -> list[Held]:
        """The deliveries that a worker owns according to the database, and whether each was asked to stop.

        Those that it has listed are written out first, if the list is a second old. `fresh`: whatever its age.
        """
        age = 0.0 if fresh else OLD

        def old(tx: Tx) -> bool:
            return bool(tx.rows("has_lists", worker=worker, age=age)[0][0])

        if self._database.read(old):
            self._database.write("release", lambda tx: tx.rows("write_out_lists", worker=worker, age=age))
        rows = self._database.read(lambda tx: tx.rows("owned", worker=worker))
        return [Held(id, epoch, bool(asked), lane, worker, gate) for id, epoch, asked, lane, gate in rows]

    def end(self, worker: UUID, *, lost: bool, max_lost: int = 3) -> Reclaimed:
        """Ends a lease at once and frees every delivery it owns (I11). `lost`: its attempts may have started.

        Rows that another connection keeps locked for long are left to `reclaim`.
        """

        def work(tx: Tx, *, waits: bool) -> Reclaimed:
            ended = len(tx.rows("end_lease", worker=worker))
            if waits:
                tx.rows("lock_listed", worker=worker)
                tx.rows("lock_owned", worker=worker)
                tx.rows("lock_owned_lanes", worker=worker)
            most = max_lost if lost else _NEVER
            return _free(tx, worker, ended=ended, lost=lost, max_lost=most, endings=self._endings)

        try:
            return self._endings.write("end_lease", lambda tx: work(tx, waits=True))
        except DatabaseBusy:  # the lease must end now
            return self._endings.write("end_lease", lambda tx: work(tx, waits=False))

    def reclaim(self, *, max_lost: int = 3, signed: Signed | None = None) -> Reclaimed:
        """Ends the leases that ran out, then frees every delivery and lane without a live owner.

        The attempt is given back and `lost` rises; at `max_lost` the delivery is aborted with WORKER_LOST, unless the
        ledger says that it succeeded. Audited if an operator does it.
        """

        def work(tx: Tx) -> Reclaimed:  # first the leases, then their deliveries (H1), in one transaction
            ended = [id for (id,) in tx.rows("end_expired_leases")]
            done = _free(tx, None, ended=len(ended), lost=True, max_lost=max_lost, endings=self._endings)
            if signed is not None and (ended or done.freed or done.aborted):
                targets = [f"worker:{id}" for id in ended] or ["worker:none"]
                tx.rows("audit", by=signed.by, why=signed.why, action="release-expired", targets=targets)
            return done

        return self._endings.write("reclaim", work)

    def workers(self) -> tuple[WorkerRow, ...]:
        """All leases, also ended ones that have not been reclaimed yet, with the number of deliveries each holds."""
        return self._database.read(read_workers, pinned=False)

    # ------------------------------------------------------------------------------- requests of operators

    def request_drain(self, worker: UUID, signed: Signed, *, drain: bool) -> bool:
        """Asks a worker to claim nothing, or (not `drain`) to claim again. False: its lease has ended. Audited."""

        def work(tx: Tx) -> bool:
            if not tx.rows("request_drain", worker=worker, drain=drain):
                return False
            _audit(tx, worker, signed, "drain" if drain else "resume")
            return True

        return self._database.write("request_drain", work)

    def request_stacks(self, worker: UUID, signed: Signed) -> int | None:
        """Asks a worker for its handlers' stacks; returns the number of the request. None: its lease has ended."""

        def work(tx: Tx) -> int | None:
            for (number,) in tx.rows("request_stacks", worker=worker):
                _audit(tx, worker, signed, "stack")
                return int(number)
            return None

        return self._database.write("request_stacks", work)

    def answer_stacks(self, worker: UUID, request: int, stacks: str) -> None:
        """Stores a worker's answer to a request."""
        self._database.write(
            "answer_stacks", lambda tx: tx.rows("answer_stacks", worker=worker, request=request, stacks=stacks)
        )

    def clear_stacks(self, worker: UUID, request: int) -> None:
        """Removes the answer to this request, unless a newer one has replaced it."""
        self._database.write("clear_stacks", lambda tx: tx.rows("clear_stacks", worker=worker, request=request))

    def stacks(self, worker: UUID) -> StoredStacks | None:
        """The last answer of a live worker. None: its lease has ended."""
        for request, answered, text, at in self._database.read(lambda tx: tx.rows("stacks", worker=worker)):
            is_there = text is not None
            return StoredStacks(request, answered, text, moment(at) if is_there else None)
        return None

    def held_by(self, workers: Sequence[UUID], *, most: int) -> tuple[HeldDelivery, ...]:
        """Of each of these workers, the `most` deliveries it has held longest."""
        rows = self._database.read(
            lambda tx: tx.rows("held_by", workers=[str(one) for one in workers], most=most), pinned=False
        )
        return tuple(
            HeldDelivery(uuid(worker), id, uuid(message), topic, destination, queue, tried, allowed, moment(claimed))
            for worker, id, message, topic, destination, queue, tried, allowed, claimed in rows
        )


def _audit(tx: Tx, worker: UUID, signed: Signed, action: str) -> None:
    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"worker:{worker}"])


def read_workers(tx: Tx) -> tuple[WorkerRow, ...]:
    """As `LeaseStore.workers`, in an open transaction."""
    return tuple(
        WorkerRow(uuid(id), name, state, moment(started), moment(expires), held, slots, version, bool(drain))
        for id, name, state, started, expires, held, slots, version, drain in tx.rows("workers")
    )


_NEVER: Final = 1 << 30


def _free(tx: Tx, worker: UUID | None, *, ended: int, lost: bool, max_lost: int, endings: Endings) -> Reclaimed:
    """Frees the deliveries and lanes of one worker, or (None) of all workers without a lease."""
    tx.rows("write_out_lists", worker=worker, age=0.0)
    freed = some = tx.rows("free_orphans", worker=worker, lost=int(lost), max_lost=max_lost, most=_AT_ONCE)
    while len(some) == _AT_ONCE:
        some = tx.rows("free_orphans", worker=worker, lost=int(lost), max_lost=max_lost, most=_AT_ONCE)
        freed = freed + some
    tx.rows("free_lanes", worker=worker, lost=int(lost))
    if lost and freed:
        names = ("delivery_id", "epoch", "number", "replay")
        tx.rows(
            "record_lost",
            rows=[dict(zip(names, (id, *rest), strict=True)) for id, _, *rest, _, _ in freed],
        )
    if lanes := sorted({lane for _, status, *_, lane, _ in freed if status == "aborted" and lane is not None}):
        tx.rows("park_lanes", lanes=lanes)
    gates.refresh(tx, (gate for *_, gate in freed))
    aborted = [id for id, status, *_ in freed if status == "aborted"]
    endings.after_abort(tx, aborted)
    return Reclaimed(workers=ended, freed=len(freed) - len(aborted), aborted=len(aborted))
