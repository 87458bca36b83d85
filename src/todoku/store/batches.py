"""Batches: publishes a batch with its members, and counts how they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch, batch_of, following_drafts, without_keys
from todoku.core.message import Message
from todoku.core.status import Status
from todoku.store.columns import moment, moment_or_none
from todoku.store.database import Tx
from todoku.store.ended_delivery import EndedDelivery
from todoku.store.publish import Publishing, publish, store_data_keys
from todoku.store.sql import Steps, Value


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many members of a batch are `open`, `succeeded` or `aborted`. `done`: the next batch was published."""

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
    """Stores batches and publishes their members, and the drafts that have no batch. Returns messages in that order.

    The next batch is stored as it will be published, except for its data keys, which are stored in their table now.
    """
    batches = sorted((each.batch for each in following if each.batch is not None), key=lambda batch: batch.id)
    yield from store_data_keys(to, [draft for batch in batches for draft in following_drafts(batch)])
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
    """A batch whose condition is met, and the batch that follows it."""

    id: str
    next: Following | None


def count(tx: Tx, over: Iterable[EndedDelivery]) -> list[Complete]:
    """Counts ended members; updates each batch once, in key order (H11). Returns the batches complete by now."""
    counts: dict[str, dict[str, int]] = {}
    for each in over:
        if (id := batch_of(each.headers)) is None or (each.ended_before and each.status is Status.ABORTED):
            continue
        succeeded = int(each.status is Status.SUCCEEDED)
        count = counts.setdefault(str(id), {"ended": 0, "succeeded": 0, "aborted": 0})
        count["ended"] += int(not each.ended_before)
        count["succeeded"] += succeeded
        # A dead letter that was counted as aborted, and succeeds later, is no longer aborted.
        count["aborted"] += -1 if each.ended_before else 1 - succeeded
    if not counts:
        return []
    ids = sorted(counts)
    tx.rows("lock_batches", ids=ids)
    rows = tx.rows("count_batches", counts=[{"id": id, **counts[id]} for id in ids])
    return [Complete(id, read(next)) for id, complete, next in sorted(rows) if complete]


def read(document: str | None) -> Following | None:
    """Decodes the stored next batch."""
    return None if document is None else msgspec.json.decode(document, type=Following)


def read_status(tx: Tx, id: str) -> BatchStatus | None:
    """Returns the counts of a batch; None: there is no such batch."""
    for id_, on, total, open, succeeded, aborted, created_at, done_at in tx.rows("batch", id=id):
        return BatchStatus(
            id=UUID(id_), on=on, total=total, open=open, succeeded=succeeded, aborted=aborted, done=done_at is not None,
            created_at=moment(created_at), done_at=moment_or_none(done_at),
        )  # fmt: skip
    return None
