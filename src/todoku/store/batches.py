"""Batches: publishing one with its members, and counting how they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch, batch_of, later, without_keys
from todoku.core.message import Message
from todoku.core.status import Status
from todoku.store.columns import moment, moment_or_none
from todoku.store.database import Tx
from todoku.store.ended_delivery import EndedDelivery
from todoku.store.publish import Publishing, publish, store_data_keys
from todoku.store.statements import Steps, Value


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many members of a batch are `open`, `succeeded` or `aborted`. `done`: nothing follows any more."""

    id: UUID
    on: str
    total: int
    open: int
    succeeded: int
    aborted: int
    done: bool
    created_at: datetime
    done_at: datetime | None


def begin(to: Publishing, following: Sequence[Following]) -> Steps[list[Message]]:
    """Store batches and publish their members; of what has no batch, the drafts alone. Messages in the order given.

    What will follow is stored as it will be published, but for data keys: these are stored now, where keys are.
    """
    batches = sorted((each.batch for each in following if each.batch is not None), key=lambda batch: batch.id)
    yield from store_data_keys(to, [draft for batch in batches for draft in later(batch)])
    batches = [without_keys(batch) for batch in batches]
    if batches and to.dialect == "postgresql":
        yield to.one("publish_batch", batches=msgspec.json.encode(batches).decode())
    elif batches:
        yield to.many("publish_batch", [_row(batch) | {"now": to.now} for batch in batches])
    drafts = [draft for each in following for draft in each.drafts]
    return (yield from publish(to, drafts)) if drafts else []


def _row(batch: NewBatch) -> dict[str, Value]:
    next = None if batch.next is None else msgspec.json.encode(batch.next).decode()
    return {"id": str(batch.id), "total": batch.total, "on": batch.on, "next": next}


class Complete(msgspec.Struct, frozen=True):
    """A batch that waits for nothing any more, and what follows it."""

    id: str
    next: Following | None


def count(tx: Tx, over: Iterable[EndedDelivery]) -> list[Complete]:
    """Count what has ended, each batch once and in key order (H11). Returns those that are complete by it."""
    counts: dict[str, dict[str, int]] = {}
    for each in over:
        if (id := batch_of(each.headers)) is None or (each.ended_before and each.status is Status.ABORTED):
            continue
        succeeded = int(each.status is Status.SUCCEEDED)
        count = counts.setdefault(str(id), {"ended": 0, "succeeded": 0, "aborted": 0})
        count["ended"] += int(not each.ended_before)
        count["succeeded"] += succeeded
        # A dead letter that was counted, and succeeds after all, is none any more.
        count["aborted"] += -1 if each.ended_before else 1 - succeeded
    if not counts:
        return []
    ids = sorted(counts)
    tx.rows("lock_batches", ids=ids)
    rows = tx.rows("count_batches", counts=[{"id": id, **counts[id]} for id in ids])
    return [Complete(id, read(next)) for id, complete, next in sorted(rows) if complete]


def read(document: str | None) -> Following | None:
    """What follows a batch, as it was stored."""
    return None if document is None else msgspec.json.decode(document, type=Following)


def read_status(tx: Tx, id: str) -> BatchStatus | None:
    """How far a batch is."""
    for id_, on, total, open, succeeded, aborted, created_at, done_at in tx.rows("batch", id=id):
        return BatchStatus(
            id=UUID(id_), on=on, total=total, open=open, succeeded=succeeded, aborted=aborted, done=done_at is not None,
            created_at=moment(created_at), done_at=moment_or_none(done_at),
        )  # fmt: skip
    return None
