"""Writes the steps of concurrent runs: those that wait when a commit ends are the next commit.

A step is durable before the next one of its run begins, so a single run waits for each of its commits; many runs share
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakKeyDictionary

from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.flow import StepRow
from todoku.core.message import Claimed
from todoku.store.runs import RunLost
from todoku.store.store import Store

_MOST: Final = 200
"""Steps in one commit."""

_Waiting = tuple[Claimed, StepRow, "asyncio.Future[None]"]
_End = tuple["asyncio.Future[None]", BaseException | None]


class StepWriter:
    """Writes steps for all runs of an App, from any event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _StepQueue] = WeakKeyDictionary()

    async def put(self, claim: Claimed, row: StepRow) -> None:
        """Writes a step, and returns after the commit. RunLost; StoreError: whether it is stored is unknown."""
        loop = asyncio.get_running_loop()
        if (queue := self._queues.get(loop)) is None:
            queue = self._queues[loop] = _StepQueue(self._store)
        await queue.put(claim, row)


class _StepQueue:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        # Not asyncio's shared threads: there a commit would wait behind the steps that run in them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="todoku-steps")

    async def put(self, claim: Claimed, row: StepRow) -> None:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.append((claim, row, written))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        await written

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                for written, error in await loop.run_in_executor(self._thread, self._commit, batch):
                    _resolve(written, error)
        except BaseException as error:
            # The loop ends, or no thread can be started: no run may wait for ever.
            for _, _, written in (*batch, *self._waiting):
                _resolve(written, DatabaseUnavailable(f"steps cannot be written: {error!r}", hint="the process ends"))
            self._waiting = []
            raise
        finally:
            self._writing = None

    def _commit(self, batch: Sequence[_Waiting]) -> list[_End]:
        """Writes a batch in one commit for each incarnation of the worker. What cannot be stored fails alone (I13)."""
        ends: list[_End] = []
        for worker in dict.fromkeys(claim.worker for claim, _, _ in batch):
            ends += self._commit_for_one([each for each in batch if each[0].worker == worker])
        return ends

    def _commit_for_one(self, batch: Sequence[_Waiting]) -> list[_End]:
        try:
            lost = self._store.runs.store_steps([(claim, row) for claim, row, _ in batch])
        except (DatabaseUnavailable, DatabaseBusy) as error:
            return [(written, error) for _, _, written in batch]
        except StoreError as error:
            if len(batch) == 1:
                return [(batch[0][2], error)]
            return [end for each in batch for end in self._commit_for_one([each])]
        return [(written, RunLost() if claim.id in lost else None) for claim, _, written in batch]


def _resolve(written: asyncio.Future[None], error: BaseException | None) -> None:
    if written.done():  # the run was stopped meanwhile
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
