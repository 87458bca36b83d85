"""Batches and chains: calls that are stored together, and the calls that follow when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar, get_args
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch, On, add_to_batch, chain_drafts
from todoku.core.errors import InvalidMessage, NoSuchMessage
from todoku.core.message import Alike, Draft
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Call, CallDrafts, drafts, handles_of
from todoku.engine.jobs.options import CallOptions
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.batches import BatchStatus
from todoku.store.store import Store

R = TypeVar("R")

LONGEST_CHAIN: Final = 100
"""Every link carries all links after it until it has succeeded."""


class Batch:
    """Calls that were stored together: `id`, and a handle of each, in the order of the calls."""

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
        return await in_thread(batch_status, self._store, self.id)

    astatus = asynchronous(status)


def batch_status(store: Store, id: UUID) -> BatchStatus:
    """Returns how many members of a batch have ended, or raises NoSuchMessage."""
    if (status := store.batch(id)) is None:
        raise NoSuchMessage(
            f"there is no batch {id}",
            hint="its transaction is not committed or was rolled back, or its retention has passed",
        )
    return status


async def insert_batch(outbox: Outbox, calls: Iterable[Call[Any]], tx: Any, then: Call[Any] | None, on: On) -> Batch:
    """Stores calls as one batch; the contract is that of `App.batch`. For `engine.twins`."""
    plan = _planned(calls, then, on)
    messages = await outbox.insert(plan.drafts, tx, batch=plan.batch)
    handles = [call.handle(message) for call, message in zip(plan.calls, messages, strict=False)]
    return Batch(outbox.store, plan.batch.id, handles)


async def insert_chain(outbox: Outbox, calls: Sequence[Call[Any]], tx: Any) -> list[Handle[Any]]:
    """Stores the first of several calls, with those that follow it; the contract is that of `App.chain`."""
    links = _linked(calls)
    await outbox.insert(list(links.first.drafts), tx, batch=links.first.batch)
    return links.handles


async def insert_calls(outbox: Outbox, calls: Iterable[Call[R]], tx: Any) -> list[Handle[R]]:
    """Stores many calls; the contract is that of `App.enqueue_many`."""
    checked = without_tx(calls)
    many: _Handled[R] = _Handled(checked)
    stored = await outbox.insert_many(many, tx)
    handles, first = many.handles, len(checked) - len(stored.messages)
    for place, message in enumerate(stored.messages, first):
        if handles[place].id is not message.id:  # it existed already
            handles[place] = checked[place].handle(message)
    return handles


class _Handled(CallDrafts, Generic[R]):
    """Calls whose handles are made when they are built: the database is at work meanwhile."""

    def __init__(self, calls: Sequence[Call[R]]) -> None:
        super().__init__(calls)
        self.handles: list[Handle[R]] = []

    def build(self, start: int, stop: int) -> list[Draft]:
        """As Unbuilt.build."""
        made = super().build(start, stop)
        self.handles += [call.handle_of(draft.id) for call, draft in zip(self.calls[start:stop], made, strict=True)]
        return made

    def alike(self, start: int, stop: int) -> Alike | None:
        """As Unbuilt.alike."""
        if (made := super().alike(start, stop)) is not None:
            self.handles += handles_of(self.calls[start], made.ids)
        return made


def without_tx(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Returns calls to be stored together. InvalidMessage: one has a transaction of its own, or is no call."""
    calls = list(calls)
    options: CallOptions | None = None
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidMessage(f"{call!r} is no call", hint="job.call(…), not job or job.enqueue(…)")
        if call.options is options:  # those of the call before
            continue
        options = call.options
        if call.options.get("tx") is not None or call.options.get("best_effort"):
            raise InvalidMessage(
                "a call of many has no tx and no best_effort of its own", hint="enqueue_many(calls, tx=…)"
            )
    return calls


# ------------------------------------------------------------------------------------------------- inside


class _Plan(msgspec.Struct, frozen=True):
    """A batch to be stored: the drafts of its members (of an empty batch, those that follow it), and its row."""

    calls: list[Call[Any]]
    drafts: list[Draft]
    batch: NewBatch


class _Links(msgspec.Struct, frozen=True):
    """A chain to be stored: its first link, which carries the others, and the handles of all."""

    first: Following
    handles: list[Handle[Any]]


def _planned(calls: Iterable[Call[Any]], then: Call[Any] | None, on: On) -> _Plan:
    if on not in get_args(On):
        raise InvalidMessage(f"on cannot be {on!r}", hint='"finished" or "succeeded"')
    members, id = without_tx(calls), new_id()
    made = [add_to_batch(draft, id) for draft in _drafts(members)]
    last = _drafts(without_tx([] if then is None else [then]))
    next = Following(tuple(last)) if last and made else None
    return _Plan(members, made or last, NewBatch(id=id, total=len(made), on=on, next=next))


def _linked(calls: Sequence[Call[Any]]) -> _Links:
    if not 0 < len(calls) <= LONGEST_CHAIN:
        raise InvalidMessage(f"a chain has 1 to {LONGEST_CHAIN} calls, not {len(calls)}", hint="box.chain(a.call(), …)")
    links = without_tx(calls)
    made = _drafts(links)
    handles = [call.handle_of(draft.id) for call, draft in zip(links, made, strict=True)]
    return _Links(chain_drafts(made, [new_id() for _ in made[1:]]), handles)


def _drafts(calls: Sequence[Call[Any]]) -> list[Draft]:
    """The drafts of members. None has a key: a duplicate would be counted in the batch of its first publish, if any."""
    made = drafts(calls)
    for draft in made:
        if draft.idempotency is not None:
            raise InvalidMessage(
                f"{draft.topic}: a call in a batch or chain has no idempotency_key, and its job no unique_for",
                hint="a duplicate belongs to no batch; store the whole batch once instead, with your own rows",
            )
    return made
