"""The store: the port, over whichever database. What each call promises is said in `port.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from todoku.core.decide import Settlement
from todoku.core.errors import DatabaseBusy
from todoku.core.message import Claimed
from todoku.store import lease as leases
from todoku.store import line, operate, reading
from todoku.store.database import Database, Tx
from todoku.store.port import Steps, Token
from todoku.store.prune import abort_unknown, prune
from todoku.store.values import (
    Acted,
    Counts,
    Entry,
    Filter,
    Held,
    Migrated,
    Page,
    Pruned,
    Reclaimed,
    SettleReport,
    Signed,
    Slice,
    Story,
    Waiting,
)

T = TypeVar("T")


class SqlStore:
    """`Store` on a SQL database."""

    def __init__(self, database: Database, *, ledger_ttl: float) -> None:
        self.database = database
        self._ledger_ttl = ledger_ttl

    # ---------------------------------------------------------------------------------------- its life

    def migrate(self) -> Migrated:
        return self.database.migrate()

    def ping(self) -> float:
        return float(self.database.read(lambda tx: tx.rows("clock"))[0][0])

    def close(self) -> None:
        self.database.close()

    def run(self, steps: Steps[T]) -> T:
        def work(tx: Tx) -> T:
            try:
                statement = next(steps)
                while True:
                    statement = steps.send(tx.statement(statement))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

        return self.database.write("publish", work)

    # ---------------------------------------------------------------------------------------- the lease

    def register(self, worker: UUID, *, name: str, lease: float) -> None:
        self.database.write("register", lambda tx: leases.register(tx, worker, name, lease))

    def renew(self, worker: UUID, *, lease: float, state: str = "running") -> bool:
        return self.database.write("renew", lambda tx: leases.renew(tx, worker, lease, state))

    def owned(self, worker: UUID) -> list[Held]:
        return self.database.read(lambda tx: leases.owned(tx, worker))

    def bury(self, worker: UUID, *, lost: bool, max_lost: int = 3) -> Reclaimed:
        def work(tx: Tx, *, waits: bool) -> Reclaimed:
            return leases.bury(tx, worker, lost=lost, max_lost=max_lost, waits=waits)

        try:
            return self.database.write("bury", lambda tx: work(tx, waits=True))
        except DatabaseBusy:  # the lease must end now; what somebody keeps locked is left to reclaim
            return self.database.write("bury", lambda tx: work(tx, waits=False))

    def reclaim(self, *, max_lost: int = 3) -> Reclaimed:
        return self.database.write("reclaim", lambda tx: leases.reclaim(tx, max_lost))

    # ----------------------------------------------------------------------------------------- the line

    def waiting(self, destinations: Sequence[str] | None) -> Waiting:
        return self.database.read(lambda tx: line.waiting(tx, destinations))

    def claim(self, worker: UUID, slices: Sequence[Slice], *, limit: int) -> list[Claimed]:
        return self._claimed("claim", worker, lambda tx: self.database.claim(tx, worker, slices, limit))

    def claim_suspect(self, worker: UUID, places: Sequence[tuple[str, str]]) -> list[Claimed]:
        document = line.places_of(places)
        return self._claimed(
            "claim_suspect", worker, lambda tx: tx.rows("claim_suspect", worker=worker, places=document)
        )

    def claim_lanes(self, worker: UUID, places: Sequence[tuple[str, str]], *, lanes: int, limit: int) -> list[Claimed]:
        return self._claimed("claim_lanes", worker, lambda tx: line.claim_lanes(tx, worker, places, lanes, limit))

    def _claimed(self, operation: str, worker: UUID, work: Callable[[Tx], list[Any]]) -> list[Claimed]:
        made: Callable[..., Claimed] = Claimed
        return [made(*row, worker) for row in self.database.write(operation, work)]

    def effects(self, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
        return self.database.read(lambda tx: line.effects(tx, claims))

    def settle(self, settled: Sequence[tuple[Claimed, Settlement]]) -> SettleReport:
        if not settled:
            return SettleReport()
        worker = settled[0][0].worker
        first = {pair[0].id: pair for pair in reversed(settled)}
        if len(first) < len(settled):  # an old token beside a new one of the same delivery: each by itself
            one, other = self.settle(list(first.values())), self.settle([p for p in settled if first[p[0].id] is not p])
            return SettleReport(one.lost + other.lost, one.stuck + other.stuck)
        try:
            lost = self.database.write(
                "settle", lambda tx: line.settle(tx, worker, settled, ledger_ttl=self._ledger_ttl)
            )
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

    def _lost(self, worker: UUID, claims: list[Claimed]) -> tuple[Claimed, ...]:
        if not claims:
            return ()
        before = self.database.read(lambda tx: line.settled_before(tx, worker, claims))
        return tuple(claim for claim in claims if (claim.id, claim.epoch) not in before)

    def release(self, claims: Sequence[Token], *, delay: float = 0.0) -> tuple[Token, ...]:
        if not claims:
            return ()
        worker = claims[0].worker
        first = {claim.id: claim for claim in reversed(claims)}
        if len(first) < len(claims):  # as in settle
            rest = [claim for claim in claims if first[claim.id] is not claim]
            return self.release(list(first.values()), delay=delay) + self.release(rest, delay=delay)
        ours = self.database.write("release", lambda tx: line.release(tx, worker, claims, delay))
        return tuple(claim for claim in claims if claim.id not in ours)

    # ------------------------------------------------------------------------------- what a person does

    def replay(self, which: Filter, signed: Signed, *, limit: int = 1000, dry_run: bool = False) -> Acted:
        return self._act(which, signed, "replay", ("aborted",), operate.replay, limit=limit, dry_run=dry_run)

    def cancel(self, which: Filter, signed: Signed, *, limit: int = 1000, dry_run: bool = False) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.cancel(tx, rows, signed.why)

        return self._act(
            which, signed, "cancel", ("pending", "failed", "sending"), change, limit=limit, dry_run=dry_run
        )

    def settle_by_hand(
        self, which: Filter, signed: Signed, *, succeeded: bool, limit: int = 1000, dry_run: bool = False
    ) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.settle_by_hand(tx, rows, signed.why, succeeded=succeeded, ttl=self._ledger_ttl)

        allowed = ("pending", "failed", "aborted") if succeeded else ("pending", "failed")
        action = "settle as succeeded" if succeeded else "settle as aborted"
        return self._act(
            which, signed, action, allowed, change, limit=limit, dry_run=dry_run, operation="settle_by_hand"
        )

    def purge(self, which: Filter, signed: Signed, *, limit: int = 1000, dry_run: bool = False) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.purge(tx, rows, ttl=self._ledger_ttl)

        return self._act(which, signed, "purge", ("aborted",), change, limit=limit, dry_run=dry_run)

    def _act(
        self,
        which: Filter,
        signed: Signed,
        action: str,
        allowed: Sequence[str],
        change: Callable[[Tx, list[operate.Picked]], list[int]],
        *,
        limit: int,
        dry_run: bool,
        operation: str | None = None,
    ) -> Acted:
        return self.database.write(
            operation or action,
            lambda tx: operate.act(
                tx,
                which,
                signed,
                action=action,
                allowed=allowed,
                change=lambda rows: change(tx, rows),
                limit=limit,
                dry_run=dry_run,
            ),
        )

    def set_queue(self, name: str, signed: Signed, *, paused: bool) -> None:
        def work(tx: Tx) -> None:
            tx.rows("set_queue", name=name, paused=paused)
            action = "pause" if paused else "resume"
            tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"queue:{name}"])

        self.database.write("set_queue", work)

    def set_breaker(self, destination: str, *, open_for: float, failures: int = 0) -> None:
        self.database.write(
            "set_breaker",
            lambda tx: tx.rows("set_breaker", name=destination, open_for=open_for, failures=failures),
        )

    def set_on_abort(self, destination: str, *, skip: bool) -> None:
        policy = "skip" if skip else "block"
        self.database.write("set_on_abort", lambda tx: tx.rows("set_on_abort", name=destination, on_abort=policy))

    # -------------------------------------------------------------------------------------- maintenance

    def announce(self, destinations: Sequence[str]) -> None:
        self.database.write("announce", lambda tx: tx.rows("announce", destinations=list(destinations)))

    def expire(self, *, unknown_after: float, limit: int = 5000) -> tuple[int, int]:
        def work(tx: Tx) -> int:
            rows = tx.rows("expire", most=limit)
            if lanes := sorted({lane for _, lane in rows if lane is not None}):
                tx.rows("refresh_lanes", lanes=lanes, unpark=False)
            return len(rows)

        return self.database.write("expire", work), abort_unknown(self.database, after=unknown_after, limit=limit)

    def prune(self, *, history_ttl: float, limit: int = 5000) -> Pruned:
        return prune(self.database, history_ttl=history_ttl, limit=limit)

    # ------------------------------------------------------------------------------------------ reading

    def counts(self, *, max_age: float = 0.0) -> Counts:
        if max_age > 0 and (known := self.database.read(lambda tx: reading.remembered(tx, max_age))) is not None:
            return known
        counts = self.database.read(lambda tx: reading.counted(tx, random.random))
        if not counts.exact:
            self.database.write("count", lambda tx: reading.remember(tx, counts))
        return counts

    def find(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        return self.database.read(lambda tx: reading.find(tx, which, cursor, limit))

    def story(self, message_id: UUID) -> Story | None:
        return self.database.read(lambda tx: reading.story(tx, message_id))

    def result(self, delivery_id: int) -> str | None:
        rows = self.database.read(lambda tx: tx.rows("result", id=delivery_id))
        return rows[0][0] if rows else None

    def entry(self, scope: str, key_hash: str) -> Entry | None:
        return self.database.read(lambda tx: reading.entry(tx, scope, key_hash))
