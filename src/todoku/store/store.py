"""The store: the port, over whichever database. What each call promises is said in `port.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

from todoku.core.decision import Settlement
from todoku.core.ending import Hook
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.core.message import Claimed
from todoku.core.outcome import Done, Outcome
from todoku.core.status import Status
from todoku.store import deliveries, gates, leases, operate, reading
from todoku.store.answers import Answers
from todoku.store.database import Database, Tx
from todoku.store.ending import Endings
from todoku.store.limits import P, Spot, by_place, spots
from todoku.store.parts import Parts
from todoku.store.port import Listener, Steps, Token
from todoku.store.prune import abort_unknown, expire, prune
from todoku.store.steps import taken
from todoku.store.values import (
    UNCOUNTED,
    Acted,
    Cleared,
    Counted,
    Filter,
    Gated,
    Held,
    Limits,
    Migrated,
    Pruned,
    Reclaimed,
    SettleReport,
    Signed,
    Slice,
    Transacted,
    Waiting,
    WorkerState,
)

T = TypeVar("T")


class SqlStore(Parts, Answers):
    """`Store` on a SQL database."""

    def __init__(self, database: Database, *, ledger_ttl: float, notify: bool = True) -> None:
        self.database = database
        self._ledger_ttl = ledger_ttl
        self._endings = Endings(lambda: self.database, notify=notify)
        self.claiming_seconds = 0.0

    # ---------------------------------------------------------------------------------------- its life

    def migrate(self) -> Migrated:
        return self.database.migrate()

    def ping(self) -> float:
        return float(self.database.read(lambda tx: tx.rows("clock"))[0][0])

    def close(self) -> None:
        self.database.close()

    def run(self, steps: Steps[T]) -> T:
        return self.database.write("publish", lambda tx: taken(tx, steps))

    # ---------------------------------------------------------------------------------------- the lease

    def register(self, worker: UUID, *, name: str, lease: float) -> None:
        self.database.write("register", lambda tx: leases.register(tx, worker, name, lease))

    def renew(self, worker: UUID, *, lease: float) -> bool:
        return self.database.write("renew", lambda tx: leases.renew(tx, worker, lease))

    def set_state(self, worker: UUID, state: WorkerState) -> None:
        self.database.write("set_state", lambda tx: tx.rows("set_state", worker=worker, state=state))

    def listen(self, notice: Callable[[], None]) -> Listener:
        return self.database.listen(notice)

    def owned(self, worker: UUID) -> list[Held]:
        return self.database.read(lambda tx: leases.owned(tx, worker))

    def bury(self, worker: UUID, *, lost: bool, max_lost: int = 3) -> Reclaimed:
        def work(tx: Tx, *, waits: bool) -> Reclaimed:
            return leases.bury(tx, worker, lost=lost, max_lost=max_lost, waits=waits, endings=self._endings)

        try:
            return self._ending("bury", lambda tx: work(tx, waits=True))
        except DatabaseBusy:  # the lease must end now; what somebody keeps locked is left to reclaim
            return self._ending("bury", lambda tx: work(tx, waits=False))

    def reclaim(self, *, max_lost: int = 3, signed: Signed | None = None) -> Reclaimed:
        return self._ending("reclaim", lambda tx: leases.reclaim(tx, max_lost, signed, endings=self._endings))

    # ----------------------------------------------------------------------------------------- the line

    def waiting(self, destinations: Sequence[str] | None) -> Waiting:
        return self.database.read(lambda tx: self._timed(lambda: deliveries.waiting(tx, destinations)))

    def claim(
        self, worker: UUID, slices: Sequence[Slice], *, limit: int, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        def take(tx: Tx, some: Sequence[Slice], most: int) -> list[Any]:
            return self.database.claim(tx, worker, some, most)

        return self._counted("claim", worker, slices, counted, limit, take)

    def claim_suspect(
        self, worker: UUID, places: Sequence[tuple[str, str]], *, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        def take(tx: Tx, some: Sequence[Spot], _most: int) -> list[Any]:
            return gates.claim_suspect(tx, worker, deliveries.places_of(some))

        return self._counted("claim_suspect", worker, spots(places), counted, 1, take)

    def claim_lanes(
        self,
        worker: UUID,
        places: Sequence[tuple[str, str]],
        *,
        lanes: int,
        limit: int,
        counted: Counted = UNCOUNTED,
    ) -> list[Claimed]:
        def take(tx: Tx, some: Sequence[Spot], most: int) -> list[Any]:
            # What waits behind the head of a lane would count as running: of a place with a limit only heads are taken.
            return deliveries.claim_lanes(tx, worker, some, lanes, most, alone=counted.has(*some[0]))

        return self._counted("claim_lanes", worker, spots(places), counted, limit, take)

    def claim_gates(
        self, worker: UUID, places: Sequence[Gated], *, number: int, limit: int, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        def take(tx: Tx, some: Sequence[Gated], most: int) -> list[Any]:
            return gates.claim(tx, worker, some, number, most)

        return self._counted("claim_gates", worker, places, counted, limit, take)

    def _counted(
        self,
        operation: str,
        worker: UUID,
        places: Sequence[P],
        counted: Counted,
        limit: int,
        take: Callable[[Tx, Sequence[P], int], list[Any]],
    ) -> list[Claimed]:
        def timed(tx: Tx, some: Sequence[P], most: int) -> list[Any]:
            return self._timed(lambda: take(tx, some, most))

        try:
            return self._claimed(
                operation, worker, lambda tx: by_place(tx, places, counted, limit, partial(timed, tx))
            )  # fmt: skip
        except DatabaseBusy:  # somebody stands still with the lock of a limit: what has none goes on
            free = [place for place in places if not counted.has(place.queue, place.destination)]
            if not free or len(free) == len(places):
                raise
            return self._claimed(operation, worker, lambda tx: timed(tx, free, limit))

    def _claimed(self, operation: str, worker: UUID, work: Callable[[Tx], list[Any]]) -> list[Claimed]:
        made: Callable[..., Claimed] = Claimed
        return [made(*row, worker) for row in self.database.write(operation, work)]

    def _timed(self, work: Callable[[], T]) -> T:
        """Do it, counted in `claiming_seconds`: called in a transaction that has its locks."""
        began = time.monotonic()
        result = work()
        self.claiming_seconds += time.monotonic() - began
        return result

    def effects(self, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
        return self.database.read(lambda tx: deliveries.effects(tx, claims))

    def settle(self, settled: Sequence[tuple[Claimed, Settlement]]) -> SettleReport:
        if not settled:
            return SettleReport()
        worker = settled[0][0].worker
        first = {pair[0].id: pair for pair in reversed(settled)}
        if len(first) < len(settled):  # an old token beside a new one of the same delivery: each by itself
            one, other = self.settle(list(first.values())), self.settle([p for p in settled if first[p[0].id] is not p])
            return SettleReport(one.lost + other.lost, one.stuck + other.stuck)
        try:
            lost = self._ending("settle", lambda tx: self._settle(tx, worker, settled))
        except DatabaseBusy:
            # Somebody holds one of these rows. Halve until it is alone, so that it holds up nobody else (H11).
            # SQLite has one lock for all of them: smaller parts would only wait for it again and again.
            if len(settled) == 1 or self.database.dialect == "sqlite":
                return SettleReport(stuck=tuple(claim for claim, _ in settled))
            middle = len(settled) // 2
            one, other = self.settle(settled[:middle]), self.settle(settled[middle:])
            return SettleReport(one.lost + other.lost, one.stuck + other.stuck)
        return SettleReport(
            lost=self._lost(worker, [claim for claim, _ in settled if claim.id in lost] if lost else [])
        )

    def transact(self, claim: Claimed, work: Callable[[Any], Outcome], *, limit: float) -> Outcome | Transacted:
        result = self._transact(claim, work, limit)
        self._endings.catch_up()
        return result

    def _transact(self, claim: Claimed, work: Callable[[Any], Outcome], limit: float) -> Outcome | Transacted:
        try:
            with self.database.opened(limit) as opened:
                outcome = work(opened.connection)
                if not isinstance(outcome, Done):
                    return outcome
                opened.check()
                opened.tx.rows("mark_inbox", consumer=claim.destination, message_id=claim.message_id)
                done = Settlement(status=Status.SUCCEEDED, result=outcome.result)
                if self._settle(opened.tx, claim.worker, [(claim, done)]):
                    return Transacted.LOST
                opened.commit()
                return Transacted.SETTLED
        except DatabaseUnavailable:
            if self._lost(claim.worker, [claim]):  # raises in its turn if nobody answers: then it stays unknown
                raise
            return Transacted.SETTLED  # the commit had happened, only its reply was lost

    def _settle(self, tx: Tx, worker: UUID, settled: Sequence[tuple[Claimed, Settlement]]) -> set[int]:
        return deliveries.settle(tx, worker, settled, ledger_ttl=self._ledger_ttl, endings=self._endings)

    def _ending(self, operation: str, work: Callable[[Tx], T]) -> T:
        """A write that may end deliveries; then what had to wait for its commit."""
        result = self.database.write(operation, work)
        self._endings.catch_up()
        return result

    def _lost(self, worker: UUID, claims: list[Claimed]) -> tuple[Claimed, ...]:
        if not claims:
            return ()
        before = self.database.read(lambda tx: deliveries.settled_before(tx, worker, claims))
        return tuple(claim for claim in claims if (claim.id, claim.epoch) not in before)

    def release(self, claims: Sequence[Token], *, delay: float = 0.0) -> tuple[Token, ...]:
        if not claims:
            return ()
        worker = claims[0].worker
        first = {claim.id: claim for claim in reversed(claims)}
        if len(first) < len(claims):  # as in settle
            rest = [claim for claim in claims if first[claim.id] is not claim]
            return self.release(list(first.values()), delay=delay) + self.release(rest, delay=delay)
        ours = self._ending("release", lambda tx: deliveries.release(tx, worker, claims, delay, endings=self._endings))
        return tuple(claim for claim in claims if claim.id not in ours)

    # ------------------------------------------------------------------------------- what a person does

    def replay(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        act = operate.AuditedAct("replay", ("aborted",), operate.replay)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run)

    def cancel(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.cancel(tx, rows, signed.why, endings=self._endings)

        act = operate.AuditedAct("cancel", ("pending", "failed", "sending"), change)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run)

    def settle_by_hand(
        self,
        which: Filter,
        signed: Signed,
        *,
        succeeded: bool,
        result: str | None = None,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Acted:
        def done(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.settle_as_succeeded(tx, rows, result, ttl=self._ledger_ttl, endings=self._endings)

        def over(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.settle_as_aborted(tx, rows, signed.why, ttl=self._ledger_ttl, endings=self._endings)

        if succeeded:
            act = operate.AuditedAct("settle as succeeded", ("pending", "failed", "aborted"), done)
        else:
            act = operate.AuditedAct("settle as aborted", ("pending", "failed"), over)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run, operation="settle_by_hand")

    def purge(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.purge(tx, rows, signed, ttl=self._ledger_ttl, endings=self._endings)

        act = operate.AuditedAct("purge", ("aborted",), change)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run)

    def _act(
        self,
        which: Filter,
        signed: Signed,
        act: operate.AuditedAct,
        *,
        limit: int,
        after: int,
        dry_run: bool,
        operation: str | None = None,
    ) -> Acted:
        return self._ending(
            operation or act.name,
            lambda tx: operate.act(tx, which, signed, act, limit=limit, after=after, dry_run=dry_run),
        )

    def clear_history(
        self,
        signed: Signed,
        *,
        topic: str | None = None,
        until: datetime | None = None,
        after: tuple[int, int] = (0, 0),
        limit: int = 1000,
        dry_run: bool = False,
    ) -> Cleared:
        return self.database.write(
            "clear_history",
            lambda tx: operate.clear_history(tx, signed, topic, until, after=after, limit=limit, dry_run=dry_run),
        )

    def set_queue(self, name: str, signed: Signed, *, paused: bool) -> None:
        def work(tx: Tx) -> None:
            tx.rows("set_queue", name=name, paused=paused)
            action = "pause" if paused else "resume"
            tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"queue:{name}"])

        self.database.write("set_queue", work)

    def set_limit(
        self,
        name: str,
        signed: Signed,
        *,
        of: Literal["queue", "destination"],
        concurrency: int | None,
        rate: float | None,
        lasts: float | None = None,
    ) -> None:
        self.database.write(
            "set_limit",
            lambda tx: operate.limit(tx, name, signed, of=of, concurrency=concurrency, rate=rate, lasts=lasts),
        )

    def set_breaker(self, destination: str, *, open_for: float, failures: int = 0) -> None:
        self.database.write(
            "set_breaker",
            lambda tx: tx.rows("set_breaker", name=destination, open_for=open_for, failures=failures),
        )

    def set_on_abort(self, destination: str, *, skip: bool) -> None:
        policy = "skip" if skip else "block"
        self.database.write("set_on_abort", lambda tx: tx.rows("set_on_abort", name=destination, on_abort=policy))

    def limits(self) -> Limits:
        return self.database.read(reading.limits)

    # -------------------------------------------------------------------------------------- maintenance

    def announce(self, destinations: Sequence[str]) -> None:
        self.database.write("announce", lambda tx: tx.rows("announce", destinations=list(destinations)))

    def expire(self, *, unknown_after: float, limit: int = 5000) -> tuple[int, int]:
        late = self._ending("expire", lambda tx: expire(tx, limit=limit, endings=self._endings))
        unknown = abort_unknown(self.database, after=unknown_after, limit=limit, endings=self._endings)
        self._endings.catch_up()
        return late, unknown

    def announce_hooks(self, hooks: Sequence[Hook]) -> None:
        self._endings.announce(hooks)

    def follow(self) -> int:
        return self._endings.catch_up(all=True)

    def prune(self, *, history_ttl: float, limit: int = 5000) -> Pruned:
        return prune(self.database, history_ttl=history_ttl, limit=limit)
