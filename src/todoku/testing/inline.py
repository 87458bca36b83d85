"""Jobs that run where they are enqueued: no worker, no second process, no retries.

What is stored in production is made here too: arguments are encoded, checked and decoded as a worker would, so a test
that passes inline passes no argument that could not travel.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.core.message import Draft, Leg, Message
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.core.status import Status
from todoku.engine.context import Context
from todoku.engine.execute import outcome_of
from todoku.engine.jobs.job import Job, here_and_now
from todoku.engine.twins import refuse_in_event_loop
from todoku.store.port import Store
from todoku.store.values import Standing

T = TypeVar("T")
_LIMIT: Final = 60.0


@contextmanager
def inline(box: App) -> Iterator[None]:
    """While the block runs, enqueue and publish call their jobs and consumers at once, in this thread.

    What a job raises comes out of `enqueue`, and so do the Retry, Abort or Snooze that it returns. Nothing is stored:
    delays, keys, limits and retries mean nothing, and destinations that send elsewhere are left out.
    """
    before, store = box.outbox.instead, box.outbox.store
    here = _Inline(box, store)
    box.outbox.instead, box.outbox.store = here, cast("Store", here)
    try:
        yield
    finally:
        box.outbox.instead, box.outbox.store = before, store


class _Inline:
    """In the place of the outbox's store: runs what is put, and remembers how it ended for the handles."""

    def __init__(self, box: App, store: Store) -> None:
        self._box = box
        self._store = store
        self._ended: dict[tuple[UUID, str], Standing] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def standing(self, message_id: UUID, destination: str) -> Standing | None:
        """As Store.standing: what ran here, then what is stored."""
        return self._ended.get((message_id, destination)) or self._store.standing(message_id, destination)

    def put(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As Instead.put."""
        if any(job.target.run == "loop" for draft in drafts for job, _ in self._legs(draft)):
            refuse_in_event_loop("the a… form of this call")
            return asyncio.run(self.aput(drafts, tx))
        return _stepped(self.aput(drafts, tx))

    async def aput(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As Instead.aput."""
        for draft in drafts:
            for job, leg in self._legs(draft):
                await self._run(job, draft, leg, tx)
        now = datetime.now(UTC)
        return [Message(id=each.id, topic=each.topic, key=each.key, duplicate=False, created_at=now) for each in drafts]

    def _legs(self, draft: Draft) -> Iterator[tuple[Job[..., Any], Leg]]:
        for leg in draft.legs:
            if (job := self._box.jobs.get(leg.destination)) is not None:
                yield job, leg

    async def _run(self, job: Job[..., Any], draft: Draft, leg: Leg, tx: Any) -> None:
        context = Context(_claim(job, draft, leg), float("inf"))
        with self._transaction(job, context, tx):
            value = job.target.call(context) if job.target.call is not None else None
            outcome = outcome_of(await value if inspect.isawaitable(value) else value, job.target)
            context.flush()
            self._ended[draft.id, job.name] = _standing(outcome)

    @contextmanager
    def _transaction(self, job: Job[..., Any], context: Context, tx: Any) -> Iterator[None]:
        """A transactional job works in the caller's transaction, or in one that commits with its success."""
        if not job.target.transactional:
            yield
        elif tx is not None:
            _join(context, tx)
            yield
        else:
            with self._box.store.database.opened(_LIMIT) as one:
                context.join(one.connection)
                yield
                one.check()
                one.commit()


def _join(context: Context, tx: Any) -> None:
    """The caller's transaction as the handler's; of a SQLAlchemy session, the session too."""
    connection = tx.connection() if hasattr(tx, "get_bind") else tx
    driver = getattr(getattr(connection, "connection", connection), "driver_connection", connection)
    context.join(driver, None if connection is tx else tx)


def _claim(job: Job[..., Any], draft: Draft, leg: Leg) -> Any:
    """The claim that a worker would have got."""
    return msgspec.structs.replace(
        here_and_now(job.handler),
        message_id=str(draft.id),
        topic=draft.topic,
        key=draft.key,
        payload=draft.payload,
        payload_bytes=draft.payload_bytes,
        content_type=draft.content_type,
        headers=draft.headers,
        queue=leg.queue,
        priority=leg.priority,
        max_attempts=leg.max_attempts,
    )


def _standing(outcome: Outcome) -> Standing:
    match outcome:
        case Done(result=result):
            return Standing(0, Status.SUCCEEDED, None, None, result)
        case Retry() | Abort() | Snooze():
            raise outcome


def _stepped(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing, without an event loop: plain jobs find the thread as they know it."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a plain job awaited something")
