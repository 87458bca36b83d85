"""Runs jobs where they are enqueued: no worker, no second process, no retries.

Arguments are encoded, checked and decoded as in production, so an argument that could not be stored fails inline, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.core.decision import Settlement
from todoku.core.errors import InvalidSetting
from todoku.core.message import Draft, Leg, Message
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.core.status import Status
from todoku.engine.context import Context
from todoku.engine.execute import outcome_of
from todoku.engine.jobs.job import Job, here_and_now
from todoku.engine.observability.message_headers import current_headers
from todoku.engine.twins import refuse_in_event_loop
from todoku.store.deliveries import DeliveryStore, Standing
from todoku.store.store import Store

T = TypeVar("T")
_TIMEOUT: Final = 60.0


@contextmanager
def inline(box: App) -> Iterator[None]:
    """While the block runs, enqueue and publish call their jobs and consumers at once, in this thread.

    `enqueue` raises the exceptions of the job, and the Retry, Abort or Snooze that it returns. Nothing is stored:
    delays, keys, limits and retries have no effect, and destinations that send elsewhere are skipped.
    """
    before, store = box.outbox.instead, box.outbox.store
    runner = _Inline(box, store)
    box.outbox.instead, box.outbox.store = runner, cast("Store", runner)
    try:
        yield
    finally:
        box.outbox.instead, box.outbox.store = before, store


class _Inline:
    """Replaces the outbox's store: runs the drafts that are put, and stores their outcomes for the handles."""

    def __init__(self, box: App, store: Store) -> None:
        self._box = box
        self._store = store
        self._ended: dict[tuple[UUID, str], Standing] = {}
        self.deliveries = _InlineDeliveries(store.deliveries, self._ended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As Instead.put."""
        if any(job.target.run == "loop" for draft in drafts for job, _ in self._legs(draft)):
            refuse_in_event_loop("the a… form of this call")
            return asyncio.run(self.aput(drafts, tx))
        return _run_without_loop(self.aput(drafts, tx))

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
        if job.target.context is not None:
            raise InvalidSetting(
                f"{job.name} is a workflow, which is not run inline", hint="start it, then box.drain()"
            )
        context = Context(_claim(job, draft, leg), float("inf"))
        with self._transaction(job, context, tx), current_headers(draft.headers):
            value = job.target.call(context) if job.target.call is not None else None
            outcome = outcome_of(await value if inspect.isawaitable(value) else value, job.target, context.claim)
            context.flush()
            self._ended[draft.id, job.name] = _standing(outcome)

    @contextmanager
    def _transaction(self, job: Job[..., Any], context: Context, tx: Any) -> Iterator[None]:
        """Runs a transactional job in the caller's transaction, or in one that commits if it succeeds."""
        if not job.target.transactional:
            yield
        elif tx is not None:
            _join(context, tx)
            yield
        else:
            with self._box.store.database.open_transaction(_TIMEOUT) as one:
                context.join(one.connection)
                yield
                one.check()
                one.commit()


class _InlineDeliveries:
    """Replaces `store.deliveries`: knows the calls that ran inline beside the stored ones."""

    def __init__(self, stored: DeliveryStore, ended: dict[tuple[UUID, str], Standing]) -> None:
        self._stored = stored
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def standing(self, message_id: UUID, destinations: Sequence[str]) -> Standing | None:
        """As DeliveryStore.standing."""
        ended = (found for name in destinations if (found := self._ended.get((message_id, name))) is not None)
        return next(ended, None) or self._stored.standing(message_id, destinations)


def _join(context: Context, tx: Any) -> None:
    """Gives the handler the caller's transaction, and the session if it is one of SQLAlchemy."""
    connection = tx.connection() if hasattr(tx, "get_bind") else tx
    driver = getattr(getattr(connection, "connection", connection), "driver_connection", connection)
    context.join(driver, None if connection is tx else tx)


def _claim(job: Job[..., Any], draft: Draft, leg: Leg) -> Any:
    """The claim that a worker would have received."""
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


def _standing(outcome: Outcome | Settlement) -> Standing:
    match outcome:
        case Done(result=result):
            return Standing(0, Status.SUCCEEDED, None, None, result)
        case Retry() | Abort() | Snooze():
            raise outcome
        case Settlement():
            raise TypeError("only a workflow settles itself")


def _run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that awaits nothing, so that sync jobs run in a thread without an event loop, as usual."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a sync job awaited something")
