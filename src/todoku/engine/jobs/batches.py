"""Batches and chains: calls that belong together, and what is called when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, get_args
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch, On, chained, member
from todoku.core.errors import InvalidMessage, NoSuchMessage
from todoku.core.message import Draft, Message
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Call
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.port import Store
from todoku.store.values import BatchStatus

R = TypeVar("R")

LONGEST_CHAIN: Final = 100
"""Every link carries all that follow it, until it has succeeded."""


class Batch:
    """Calls that were stored together: `id`, and a handle of each in the order given."""

    __slots__ = ("_store", "handles", "id")

    def __init__(self, store: Store, id: UUID, handles: Sequence[Handle[Any]]) -> None:
        self._store = store
        self.id = id
        self.handles = tuple(handles)

    def __repr__(self) -> str:
        return f"<Batch of {len(self.handles)} {self.id}>"

    @blocking("batch")
    async def status(self) -> BatchStatus:
        """Returns how many of its members have ended. NoSuchMessage: rolled back, not committed yet, or pruned."""
        return await in_thread(found, self._store, self.id)

    astatus = asynchronous(status)


def found(store: Store, id: UUID) -> BatchStatus:
    """How far a batch is."""
    if (status := store.batch(id)) is None:
        raise NoSuchMessage(
            f"there is no batch {id}",
            hint="its transaction is not committed or was rolled back, or its retention has passed",
        )
    return status


class Batches:
    """What an App does with calls that belong together."""

    outbox: Outbox

    @blocking("box")
    async def batch(
        self, calls: Iterable[Call[Any]], *, tx: Any, then: Call[Any] | None = None, on: On = "finished"
    ) -> Batch:
        """Store calls, made by `job.call(…)`, as one batch, in your transaction: all of them, or none.

        `then` is called once when all have ended, whichever way; with `on="succeeded"` when all have succeeded, be it
        after a replay. It is stored in the transaction that ends the last of them. An empty batch is complete at once.
        """
        plan = _planned(calls, then, on)
        return plan.made(self.outbox, await self.outbox.insert(plan.drafts, tx, batch=plan.batch))

    abatch = asynchronous(batch)

    @blocking("box")
    async def chain(self, *calls: Call[Any], tx: Any) -> list[Handle[Any]]:
        """Store calls that are made one after the other, in your transaction; a handle of each.

        Each is stored in the transaction in which the one before succeeds. One that is aborted stops the chain; a
        replay that succeeds lets it go on. The handle of a link that is not stored yet says NoSuchMessage.
        """
        links = _linked(calls)
        await self.outbox.insert(list(links.first.drafts), tx, batch=links.first.batch)
        return links.handles

    achain = asynchronous(chain)

    @blocking("box")
    async def batch_status(self, id: UUID) -> BatchStatus:
        """How far a batch is, by its id. NoSuchMessage: there is none, or its retention has passed."""
        return await in_thread(found, self.outbox.store, id)

    abatch_status = asynchronous(batch_status)


def without_tx(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Calls to be stored together: none of them has a transaction of its own."""
    calls = list(calls)
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidMessage(f"{call!r} is no call", hint="job.call(…), not job or job.enqueue(…)")
        if call.options.get("tx") is not None or call.options.get("best_effort"):
            raise InvalidMessage(
                "a call of many has no tx and no best_effort of its own", hint="enqueue_many(calls, tx=…)"
            )
    return calls


# ------------------------------------------------------------------------------------------------- inside


class _Plan(msgspec.Struct, frozen=True):
    """A batch to be stored: its members' drafts (of an empty one what follows), and its row."""

    calls: list[Call[Any]]
    drafts: list[Draft]
    batch: NewBatch

    def made(self, outbox: Outbox, messages: Sequence[Message]) -> Batch:
        handles = [call.handle(message) for call, message in zip(self.calls, messages, strict=False)]
        return Batch(outbox.store, self.batch.id, handles)


class _Links(msgspec.Struct, frozen=True):
    """A chain to be stored: its first link, which carries the others, and the handles of all."""

    first: Following
    handles: list[Handle[Any]]


def _planned(calls: Iterable[Call[Any]], then: Call[Any] | None, on: On) -> _Plan:
    if on not in get_args(On):
        raise InvalidMessage(f"on cannot be {on!r}", hint='"finished" or "succeeded"')
    members, id = without_tx(calls), new_id()
    drafts = [member(_draft(call), id) for call in members]
    last = [_draft(call) for call in without_tx([] if then is None else [then])]
    next = Following(tuple(last)) if last and drafts else None
    return _Plan(members, drafts or last, NewBatch(id=id, total=len(drafts), on=on, next=next))


def _linked(calls: Sequence[Call[Any]]) -> _Links:
    if not 0 < len(calls) <= LONGEST_CHAIN:
        raise InvalidMessage(f"a chain has 1 to {LONGEST_CHAIN} calls, not {len(calls)}", hint="box.chain(a.call(), …)")
    links = without_tx(calls)
    drafts = [_draft(call) for call in links]
    handles = [call.handle_of(draft) for call, draft in zip(links, drafts, strict=True)]
    return _Links(chained(drafts, [new_id() for _ in drafts[1:]]), handles)


def _draft(call: Call[Any]) -> Draft:
    """The draft of a call that somebody counts. A duplicate would be counted where it was published first, or never."""
    draft = call.draft()
    if draft.idempotency is not None:
        raise InvalidMessage(
            f"{draft.topic}: a call in a batch or chain has no idempotency_key, and its job no unique_for",
            hint="a duplicate belongs to nobody's batch; store the whole batch once instead, with your own rows",
        )
    return draft
