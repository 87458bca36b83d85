"""The store: the port, over whichever database. What each call promises is said in `port.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from todoku.core.decide import Settlement
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, SchemaError
from todoku.core.message import Claimed
from todoku.core.outcome import Done, Outcome
from todoku.core.status import Status
from todoku.store import clear, line, looking, operate, reading, verify
from todoku.store import lease as leases
from todoku.store.database import Database, Tx
from todoku.store.lag import lag
from todoku.store.port import Listener, Steps, Token
from todoku.store.prune import abort_unknown, prune
from todoku.store.values import (
    Acted,
    Cleared,
    Counts,
    Entry,
    Filter,
    Held,
    Lag,
    Limits,
    Migrated,
    Page,
    Pruned,
    Reclaimed,
    SettleReport,
    Signed,
    Slice,
    Standing,
    Story,
    Transacted,
    Waiting,
    WorkerRow,
)
from todoku.store.views import DeadGroup, Event, Facts, Known, Preview, Situation

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

    def set_state(self, worker: UUID, state: str) -> None:
        self.database.write("set_state", lambda tx: tx.rows("set_state", worker=worker, state=state))

    def listen(self, notice: Callable[[], None]) -> Listener:
        return self.database.listen(notice)

    def owned(self, worker: UUID) -> list[Held]:
        return self.database.read(lambda tx: leases.owned(tx, worker))

    def bury(self, worker: UUID, *, lost: bool, max_lost: int = 3) -> Reclaimed:
        def work(tx: Tx, *, waits: bool) -> Reclaimed:
            return leases.bury(tx, worker, lost=lost, max_lost=max_lost, waits=waits)

        try:
            return self.database.write("bury", lambda tx: work(tx, waits=True))
        except DatabaseBusy:  # the lease must end now; what somebody keeps locked is left to reclaim
            return self.database.write("bury", lambda tx: work(tx, waits=False))

    def reclaim(self, *, max_lost: int = 3, signed: Signed | None = None) -> Reclaimed:
        return self.database.write("reclaim", lambda tx: leases.reclaim(tx, max_lost, signed))

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

    def transact(self, claim: Claimed, work: Callable[[Any], Outcome], *, limit: float) -> Outcome | Transacted:
        try:
            with self.database.opened(limit) as opened:
                outcome = work(opened.connection)
                if not isinstance(outcome, Done):
                    return outcome
                opened.check()
                opened.tx.rows("mark_inbox", consumer=claim.destination, message_id=claim.message_id)
                done = Settlement(status=Status.SUCCEEDED, result=outcome.result)
                if line.settle(opened.tx, claim.worker, [(claim, done)], ledger_ttl=self._ledger_ttl):
                    return Transacted.LOST
                opened.commit()
                return Transacted.SETTLED
        except DatabaseUnavailable:
            if self._lost(claim.worker, [claim]):  # raises in its turn if nobody answers: then it stays unknown
                raise
            return Transacted.SETTLED  # the commit had happened, only its reply was lost

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

    def replay(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        act = operate.Act("replay", ("aborted",), operate.replay)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run)

    def cancel(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.cancel(tx, rows, signed.why)

        act = operate.Act("cancel", ("pending", "failed", "sending"), change)
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
            return operate.settle_as_succeeded(tx, rows, result, ttl=self._ledger_ttl)

        def over(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.settle_as_aborted(tx, rows, signed.why, ttl=self._ledger_ttl)

        if succeeded:
            act = operate.Act("settle as succeeded", ("pending", "failed", "aborted"), done)
        else:
            act = operate.Act("settle as aborted", ("pending", "failed"), over)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run, operation="settle_by_hand")

    def purge(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        def change(tx: Tx, rows: list[operate.Picked]) -> list[int]:
            return operate.purge(tx, rows, signed, ttl=self._ledger_ttl)

        act = operate.Act("purge", ("aborted",), change)
        return self._act(which, signed, act, limit=limit, after=after, dry_run=dry_run)

    def _act(
        self,
        which: Filter,
        signed: Signed,
        act: operate.Act,
        *,
        limit: int,
        after: int,
        dry_run: bool,
        operation: str | None = None,
    ) -> Acted:
        return self.database.write(
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
            lambda tx: clear.clear_history(tx, signed, topic, until, after=after, limit=limit, dry_run=dry_run),
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

    def lag(self, *, stuck_after: float) -> Lag:
        return self.database.read(lambda tx: lag(tx, stuck_after=stuck_after, draw=random.random))

    def find(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        return self.database.read(lambda tx: reading.find(tx, which, cursor, limit))

    def story(self, message_id: UUID) -> Story | None:
        return self.database.read(lambda tx: reading.story(tx, message_id))

    def workers(self) -> tuple[WorkerRow, ...]:
        return self.database.read(reading.workers)

    def result(self, delivery_id: int) -> str | None:
        rows = self.database.read(lambda tx: tx.rows("result", id=delivery_id))
        return rows[0][0] if rows else None

    def standing(self, message_id: UUID, destination: str) -> Standing | None:
        rows = self.database.read(lambda tx: tx.rows("standing", message_id=message_id, destination=destination))
        return Standing(*rows[0]) if rows else None

    def entry(self, scope: str, key_hash: str) -> Entry | None:
        return self.database.read(lambda tx: reading.entry(tx, scope, key_hash))

    def previews(self, message_ids: Sequence[UUID], *, largest: int = 65_536) -> dict[UUID, Preview]:
        return self.database.read(lambda tx: looking.previews(tx, message_ids, largest)) if message_ids else {}

    def dead(self) -> tuple[DeadGroup, ...]:
        return self.database.read(looking.dead)

    def known(self) -> Known:
        return self.database.read(looking.known)

    def situation(self, delivery_id: int) -> Situation | None:
        return self.database.snapshot(lambda tx: looking.situation(tx, delivery_id))

    def tail(self, *, since: float, limit: int = 500) -> tuple[Event, ...]:
        return self.database.read(lambda tx: looking.tail(tx, since, limit))

    def broken(self, *, history_ttl: float, ledger_ttl: float, most: int = 10) -> dict[str, tuple[str, ...]]:
        return self.database.snapshot(
            lambda tx: verify.broken(tx, history_ttl=history_ttl, ledger_ttl=ledger_ttl, most=most)
        )

    def facts(self) -> Facts:
        facts = self.database.facts()
        try:
            version = self.database.read(lambda tx: tx.rows("schema_version"))[0][0]
            stray = self.database.read(lambda tx: tx.rows("stray_history"))[0][0]
        except SchemaError:
            return facts
        return msgspec.structs.replace(facts, version=version, stray=stray)
