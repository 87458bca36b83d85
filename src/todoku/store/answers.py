"""The store's answers: the part of the port that only reads (but for counts that are remembered)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import msgspec

from todoku.core.ending import Hook
from todoku.core.errors import SchemaError
from todoku.store import batch, inspection, reading
from todoku.store.database import Database
from todoku.store.ending import known_hooks
from todoku.store.inspection import lag
from todoku.store.values import BatchStatus, Counts, Entry, Filter, Lag, Page, Standing, Story, WorkerRow
from todoku.store.views import DeadGroup, Event, Facts, FullGate, Known, Preview, Situation


class Answers:
    """Everything one may ask the store. What each call promises is said in `port.py`."""

    database: Database

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
        return self.database.read(reading.workers, pinned=False)

    def result(self, delivery_id: int) -> str | None:
        rows = self.database.read(lambda tx: tx.rows("result", id=delivery_id))
        return rows[0][0] if rows else None

    def standing(self, message_id: UUID, destination: str) -> Standing | None:
        rows = self.database.read(lambda tx: tx.rows("standing", message_id=message_id, destination=destination))
        return Standing(*rows[0]) if rows else None

    def hooks(self) -> tuple[Hook, ...]:
        return self.database.read(known_hooks)

    def batch(self, id: UUID) -> BatchStatus | None:
        return self.database.read(lambda tx: batch.status(tx, str(id)))

    def entry(self, scope: str, key_hash: str) -> Entry | None:
        return self.database.read(lambda tx: reading.entry(tx, scope, key_hash))

    def previews(self, message_ids: Sequence[UUID], *, largest: int = 65_536) -> dict[UUID, Preview]:
        return self.database.read(lambda tx: inspection.previews(tx, message_ids, largest)) if message_ids else {}

    def dead(self) -> tuple[DeadGroup, ...]:
        return self.database.read(inspection.dead)

    def known(self) -> Known:
        return self.database.read(inspection.known, pinned=False)

    def situation(self, delivery_id: int) -> Situation | None:
        return self.database.snapshot(lambda tx: inspection.situation(tx, delivery_id))

    def full_gates(self, *, limit: int = 100) -> tuple[FullGate, ...]:
        return self.database.read(lambda tx: inspection.full_gates(tx, limit))

    def tail(self, *, since: float, limit: int = 500) -> tuple[Event, ...]:
        return self.database.read(lambda tx: inspection.tail(tx, since, limit))

    def broken(self, *, history_ttl: float, ledger_ttl: float, most: int = 10) -> dict[str, tuple[str, ...]]:
        return self.database.snapshot(
            lambda tx: inspection.broken(tx, history_ttl=history_ttl, ledger_ttl=ledger_ttl, most=most)
        )

    def facts(self) -> Facts:
        facts = self.database.facts()
        try:
            version = self.database.read(lambda tx: tx.rows("schema_version"))[0][0]
            stray = self.database.read(lambda tx: tx.rows("stray_history"))[0][0]
        except SchemaError:
            return facts
        return msgspec.structs.replace(facts, version=version, stray=stray)
