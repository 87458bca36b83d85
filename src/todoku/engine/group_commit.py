"""1'. Publish together: what several coroutines publish at the same time is committed at once.

A commit costs a flush of the disk or a round trip, however much is in it. So one thread commits, and whatever waits
when its commit ends is its next batch: a lone caller waits for nobody, and many share what one would pay.
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

MOST: Final = 500
"""Drafts in one transaction: more would make those behind them wait longer than a commit is worth."""

MOST_BYTES: Final = 8 << 20
"""Payload in one transaction: PostgreSQL takes a batch as one document."""

MOST_WAITING: Final = 64 << 20
"""Payload that may wait in memory while the database does not keep up; who comes then is told so."""

_EVERYBODY: Final = (DatabaseUnavailable, SchemaError, MixedSQLite, UnknownDatabase, UnsafeJournal)
"""What is wrong with the database and not with a draft: smaller parts would only learn it again and again."""


Answer = list[Message] | Exception
"""What becomes of drafts: they are stored as these messages, or why that is not so or not known."""


class _Caller(msgspec.Struct, frozen=True):
    """Somebody who waits for drafts to be stored."""

    drafts: list[Draft]
    size: int
    told: Callable[[Answer], None]
    gone: Callable[[], bool]


_Answered = tuple[_Caller, Answer]


class Together:
    """Takes drafts from any coroutine, and commits those of concurrent callers in one transaction."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, _Line]] = WeakKeyDictionary()
        self._opening = threading.Lock()

    async def put(self, drafts: list[Draft]) -> list[Message]:
        """Store drafts, all or none, in a transaction that others may share; what returns is committed.

        An error that one caller's drafts cause is raised to that caller alone. When the connection breaks, every caller
        of the batch is told DatabaseUnavailable: whether it was stored is unknown, and a key makes repeating it safe.
        A caller that is cancelled while it waits may have been stored, too.
        """
        if not drafts:
            return []
        if self._outbox.instead is not None:
            return await self._outbox.instead.aput(drafts, None)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Message]] = loop.create_future()
        self._line(loop, drafts).join(_Caller(drafts, _size(drafts), partial(_resolve, answer), answer.done))
        return await answer

    def hand_in(self, drafts: list[Draft], told: Callable[[Answer], None]) -> None:
        """As `put`, for who does not wait: `told` is called once, later and in this event loop."""
        if self._outbox.instead is not None:
            raise RuntimeError("what is taken in the store's place is put, not handed in")
        self._line(asyncio.get_running_loop(), drafts).join(_Caller(drafts, _size(drafts), told, _stays))

    def _line(self, loop: asyncio.AbstractEventLoop, drafts: list[Draft]) -> _Line:
        # PostgreSQL locks a lane until its publisher commits. Somebody's long transaction holds up its own lane, and
        # whoever is in one batch with it: so what goes into lanes does not share a line with what does not.
        ordered = any(leg.lane is not None for draft in drafts for leg in draft.legs)
        lines = self._lines.get(loop)
        if lines is not None and ordered in lines:
            return lines[ordered]
        with self._opening:
            return self._lines.setdefault(loop, {}).setdefault(ordered, _Line(self._outbox))


class _Line:
    """The callers of one event loop, and the thread that commits for them."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: deque[_Caller] = deque()
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        # A thread of its own: in the pool that everybody shares, a commit would wait for somebody's long question.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="todoku-together")

    def join(self, caller: _Caller) -> None:
        """Store a caller's drafts in the next commit but one at the latest; DatabaseBusy if too much waits already."""
        if self._waiting and self._bytes + caller.size > MOST_WAITING:
            error = DatabaseBusy(
                f"{self._bytes >> 20} MiB wait to be stored", hint="the database does not keep up: try again later"
            )
            self._outbox.telemetry.publish_failed(error, len(caller.drafts))
            raise error
        self._waiting.append(caller)
        self._bytes += caller.size
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Commit batch after batch until nobody waits."""
        loop = asyncio.get_running_loop()
        taken: list[_Caller] = []
        try:
            while taken := self._take():
                for caller, answer in await loop.run_in_executor(self._thread, self._commit, taken):
                    caller.told(answer)
        except BaseException:
            # The loop ends, or no thread is to be had: who waits must not wait for ever, and knows nothing.
            for caller in (*taken, *self._waiting):
                caller.told(DatabaseUnavailable("the process ends", hint="whether it was stored is unknown"))
            self._waiting.clear()
            self._bytes = 0
            raise
        finally:
            self._writing = None

    def _take(self) -> list[_Caller]:
        """The next batch: who has waited longest, as many as fit, and without those who have gone away."""
        batch: list[_Caller] = []
        number = size = 0
        while self._waiting:
            caller = self._waiting[0]
            if batch and (number + len(caller.drafts) > MOST or size + caller.size > MOST_BYTES):
                break
            self._waiting.popleft()
            self._bytes -= caller.size
            if not caller.gone():
                batch.append(caller)
                number += len(caller.drafts)
                size += caller.size
        return batch

    def _commit(self, batch: Sequence[_Caller]) -> list[_Answered]:
        """Store a batch in one transaction. If one of its drafts cannot be stored, halve until it is alone (I13)."""
        outbox = self._outbox
        drafts = [draft for caller in batch for draft in caller.drafts]
        try:
            messages = outbox.store.run(publish(outbox.publishing(), drafts))
        except Exception as error:  # noqa: BLE001 - its caller raises it
            if len(batch) > 1 and not self._concerns_all(error):
                middle = len(batch) // 2
                return self._commit(batch[:middle]) + self._commit(batch[middle:])
            for caller in batch:
                outbox.telemetry.publish_failed(error, len(caller.drafts))
            return [(caller, error) for caller in batch]
        outbox.wake()
        outbox.telemetry.published(drafts, messages)
        rest = iter(messages)
        return [(caller, [next(rest) for _ in caller.drafts]) for caller in batch]

    def _concerns_all(self, error: Exception) -> bool:
        if isinstance(error, DatabaseBusy):  # SQLite has one lock; in PostgreSQL it is somebody's row or lane
            return self._outbox.publishing().dialect == "sqlite"
        return isinstance(error, _EVERYBODY)


def _resolve(waiting: asyncio.Future[list[Message]], answer: Answer) -> None:
    if waiting.done():  # it was cancelled meanwhile
        return
    if isinstance(answer, Exception):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def _stays() -> bool:
    """Who handed drafts in and went on cannot take them back."""
    return False


def _size(drafts: Sequence[Draft]) -> int:
    return sum(len(draft.payload or "") + len(draft.payload_bytes or b"") for draft in drafts)
