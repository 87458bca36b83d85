"""1'. Group commit: messages that several coroutines publish concurrently share one transaction.

A commit costs a disk flush or a round trip, however many rows it has. So one thread commits, and all callers that wait
when its commit ends are its next batch: a single caller does not wait, and many callers share the cost.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from todoku.core.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    MixedSQLite,
    SchemaError,
    UnknownDatabase,
    UnsafeJournal,
)
from todoku.core.message import Draft, Message
from todoku.engine.outbox import Outbox
from todoku.store.publish import publish
from todoku.store.publish_deduplicated import is_deduplicated, publish_deduplicated

MOST: Final = 500
"""Drafts in one transaction: with more, the next batch would wait longer than the saved commits are worth."""

MOST_BYTES: Final = 8 << 20
"""Bytes of payload in one transaction: PostgreSQL gets a batch as one JSON document."""

MOST_WAITING: Final = 64 << 20
"""Bytes of payload that may wait in memory while the database is slow; beyond that, callers get DatabaseBusy."""

_DATABASE_ERRORS: Final = (DatabaseUnavailable, SchemaError, MixedSQLite, UnknownDatabase, UnsafeJournal)
"""Errors of the database and not of a draft: smaller batches would only fail again."""


CommitResult = list[Message] | Exception
"""The result for a caller: the stored messages, or an error, after which they may or may not be stored."""


class _Caller(msgspec.Struct, frozen=True):
    """A caller that waits for its drafts to be stored."""

    drafts: list[Draft]
    size: int
    on_result: Callable[[CommitResult], None]
    is_gone: Callable[[], bool]


_CallerResult = tuple[_Caller, CommitResult]


class GroupCommit:
    """Accepts drafts from any coroutine, and commits those of concurrent callers in one transaction."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, _CommitQueue]] = WeakKeyDictionary()
        self._create_lock = threading.Lock()

    async def put(self, drafts: list[Draft]) -> list[Message]:
        """Stores drafts, all or none, in a transaction that other callers may share. Returns after the commit.

        An error in one caller's drafts is raised to that caller alone. When the connection breaks, every caller of the
        batch gets DatabaseUnavailable: whether its drafts are stored is unknown, and an idempotency key makes repeating
        safe. The drafts of a caller that is cancelled while it waits may be stored, too.
        """
        if not drafts:
            return []
        if self._outbox.instead is not None:
            return await self._outbox.instead.aput(drafts, None)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Message]] = loop.create_future()
        self._queue_of(loop, drafts).join(_Caller(drafts, _size(drafts), partial(_resolve, answer), answer.done))
        return await answer

    def submit(self, drafts: list[Draft], on_result: Callable[[CommitResult], None]) -> None:
        """As `put`, without waiting: `on_result` is called once with the result, later and in this event loop."""
        if self._outbox.instead is not None:
            raise RuntimeError("a replaced store accepts drafts by put() only")
        self._queue_of(asyncio.get_running_loop(), drafts).join(_Caller(drafts, _size(drafts), on_result, _never_gone))

    def _queue_of(self, loop: asyncio.AbstractEventLoop, drafts: list[Draft]) -> _CommitQueue:
        # PostgreSQL locks a lane until its publisher commits. A caller's long transaction blocks its lane, and every
        # caller in one batch with a draft for that lane: so drafts with lanes and without have separate queues.
        ordered = _has_lane(drafts)
        queues = self._queues.get(loop)
        if queues is not None and ordered in queues:
            return queues[ordered]
        with self._create_lock:
            return self._queues.setdefault(loop, {}).setdefault(ordered, _CommitQueue(self._outbox))


class _CommitQueue:
    """The waiting callers of one event loop, and the thread that commits for them."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: deque[_Caller] = deque()
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        # Not asyncio's shared thread pool: there a commit would wait behind long queries.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="todoku-together")

    def join(self, caller: _Caller) -> None:
        """Queues a caller's drafts for the next batch. DatabaseBusy if too many bytes wait already."""
        if self._waiting and self._bytes + caller.size > MOST_WAITING:
            error = DatabaseBusy(
                f"{self._bytes >> 20} MiB wait to be stored", hint="the database is too slow: try again later"
            )
            self._outbox.telemetry.publish_failed(error, len(caller.drafts))
            raise error
        self._waiting.append(caller)
        self._bytes += caller.size
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Commits batch after batch until no caller waits."""
        loop = asyncio.get_running_loop()
        batch: list[_Caller] = []
        try:
            while batch := self._take():
                for caller, answer in await loop.run_in_executor(self._thread, self._commit, batch):
                    caller.on_result(answer)
                batch = []
                await asyncio.sleep(0)  # requests that have arrived by now are read, and join the next batch
        except BaseException:
            # The loop ends, or no thread can be started: the callers must not wait for ever.
            for caller in (*batch, *self._waiting):
                caller.on_result(
                    DatabaseUnavailable("the process ends", hint="it is unknown whether the message was stored")
                )
            self._waiting.clear()
            self._bytes = 0
            raise
        finally:
            self._writing = None

    def _take(self) -> list[_Caller]:
        """Takes the next batch: callers in order of arrival, as many as fit, without those that were cancelled."""
        batch: list[_Caller] = []
        number = size = 0
        while self._waiting:
            caller = self._waiting[0]
            if batch and (number + len(caller.drafts) > MOST or size + caller.size > MOST_BYTES):
                break
            self._waiting.popleft()
            self._bytes -= caller.size
            if not caller.is_gone():
                batch.append(caller)
                number += len(caller.drafts)
                size += caller.size
        return batch

    def _commit(self, batch: Sequence[_Caller]) -> list[_CallerResult]:
        """Stores a batch in one transaction; those whose keys are taken already in a second one.

        A caller with several drafts needs all of them in one transaction.
        """
        to = self._outbox.publishing()
        drafts = [caller.drafts[0] for caller in batch if len(caller.drafts) == 1]
        if len(drafts) < len(batch) or not all(is_deduplicated(to, draft) for draft in drafts):
            return self._commit_whole(batch)
        try:
            messages = self._outbox.store.run(publish_deduplicated(to, drafts))
        except Exception as error:  # noqa: BLE001 - raised by the callers' `put`
            return self._after_error(batch, error)
        stored = [(caller, message) for caller, message in zip(batch, messages, strict=True) if message is not None]
        if stored:
            self._outbox.wake()
            self._outbox.telemetry.published([caller.drafts[0] for caller, _ in stored], [each for _, each in stored])
        results: list[_CallerResult] = [(caller, [message]) for caller, message in stored]
        if taken := [caller for caller, message in zip(batch, messages, strict=True) if message is None]:
            results += self._commit_whole(taken)
        return results

    def _commit_whole(self, batch: Sequence[_Caller]) -> list[_CallerResult]:
        outbox = self._outbox
        drafts = [draft for caller in batch for draft in caller.drafts]
        try:
            messages = outbox.store.run(publish(outbox.publishing(), drafts, whole=True))
        except Exception as error:  # noqa: BLE001 - raised by the caller's `put`
            return self._after_error(batch, error)
        outbox.wake()
        outbox.telemetry.published(drafts, messages)
        rest = iter(messages)
        return [(caller, [next(rest) for _ in caller.drafts]) for caller in batch]

    def _after_error(self, batch: Sequence[_Caller], error: Exception) -> list[_CallerResult]:
        """Halves a batch of which nothing was stored until the draft that cannot be stored is alone (I13)."""
        if len(batch) > 1 and not self._concerns_all(error):
            middle = len(batch) // 2
            return self._commit_whole(batch[:middle]) + self._commit_whole(batch[middle:])
        for caller in batch:
            self._outbox.telemetry.publish_failed(error, len(caller.drafts))
        return [(caller, error) for caller in batch]

    def _concerns_all(self, error: Exception) -> bool:
        if isinstance(error, DatabaseBusy):  # SQLite has one lock; in PostgreSQL a single row or lane is locked
            return self._outbox.publishing().dialect == "sqlite"
        return isinstance(error, _DATABASE_ERRORS)


def _resolve(waiting: asyncio.Future[list[Message]], answer: CommitResult) -> None:
    if waiting.done():  # the caller was cancelled meanwhile
        return
    if isinstance(answer, Exception):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def _never_gone() -> bool:
    """Returns False: a caller that does not wait cannot be cancelled."""
    return False


# Loops and not generators: both run for every request, nearly always with one draft.


def _has_lane(drafts: Sequence[Draft]) -> bool:
    for draft in drafts:
        for leg in draft.legs:
            if leg.lane is not None:
                return True
    return False


def _size(drafts: Sequence[Draft]) -> int:
    size = 0
    for draft in drafts:
        size += len(draft.payload or "") + len(draft.payload_bytes or b"")
    return size
