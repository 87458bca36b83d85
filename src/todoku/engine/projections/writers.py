"""Which indexes the workers of this process write, and what they have acknowledged (R22).

A rebuild adds an index to the projection's row, whose revision rises. It begins to read its source when every worker
has acknowledged the revision: the worker writes the new index, and no write of it without the new index is under way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from uuid import UUID

from todoku.core.errors import NotThere
from todoku.store.projections import ProjectionRow
from todoku.store.store import Store

_MAX_AGE: Final = 0.5
"""Seconds after which the row is read again. An older one only delays a rebuild: it waits for the acknowledgement."""

_REMEMBERED: Final = 64


class Writers:
    """The workers of this process that write one projection."""

    def __init__(
        self, store: Store, name: str, declare: Callable[[], object],
        examine: Callable[[ProjectionRow], Awaitable[ProjectionRow]],
    ) -> None:  # fmt: skip
        self._store = store
        self._name = name
        self._declare = declare
        self._examine = examine
        self._lock = threading.Lock()
        self._database = store.database
        self._row: ProjectionRow | None = None
        self._read_at = 0.0
        self._acknowledged: dict[UUID, int] = {}
        self._under_way: Counter[int] = Counter()

    async def enter(self, workers: Collection[UUID]) -> ProjectionRow:
        """Returns the projection by which a write has to be done; `leave` ends the write.

        A worker's first write waits until the worker is recorded, and its indexes were examined.
        """
        if self._database is not self._store.database:  # the App was connected to another one, between two workers
            self._begin_anew()
        for worker in workers:
            if worker not in self._acknowledged:
                await self._admit(worker)
        if self._row is None or time.monotonic() - self._read_at > _MAX_AGE:
            await asyncio.to_thread(self._refresh)
        with self._lock:
            if self._row is None:
                raise _dropped(self._name)
            self._under_way[self._row.revision] += 1
            return self._row

    async def leave(self, row: ProjectionRow) -> None:
        """Ends a write, and acknowledges the newest revision if this was the last write under an older one."""
        with self._lock:
            self._under_way[row.revision] -= 1
            late = bool(self._late())
        if late:
            await asyncio.to_thread(self.acknowledge)

    def acknowledge(self) -> None:
        """Reads the row again, and acknowledges its revision unless a write under an older one is under way. Blocks."""
        if not self._acknowledged:
            return
        self._refresh()
        with self._lock:
            late = self._late()
            revision = 0 if self._row is None else self._row.revision
        for worker in late:
            self._store.projections.acknowledge(self._name, worker, revision)
            with self._lock:
                self._acknowledged[worker] = max(revision, self._acknowledged.get(worker, 0))

    def forget(self) -> None:
        """Reads the row before the next write."""
        self._read_at = 0.0

    async def _admit(self, worker: UUID) -> None:
        admit = self._store.projections.admit
        if (row := await asyncio.to_thread(admit, self._name, worker)) is None:
            await asyncio.to_thread(self._declare)
            row = await asyncio.to_thread(admit, self._name, worker)
        if row is None:
            raise _dropped(self._name)
        self._take(await self._examine(row))
        with self._lock:
            self._acknowledged[worker] = row.revision
            for old in list(self._acknowledged)[:-_REMEMBERED]:
                del self._acknowledged[old]

    def _refresh(self) -> None:
        if (row := self._store.projections.get(self._name)) is None:
            self._begin_anew()
            raise _dropped(self._name)
        self._take(row)

    def _begin_anew(self) -> None:
        """Forgets everything: each worker is admitted again, to what is declared then."""
        with self._lock:
            self._database = self._store.database
            self._row = None
            self._acknowledged.clear()

    def _take(self, row: ProjectionRow) -> None:
        with self._lock:
            # A read that began earlier may end later: an older revision must not come back after it was acknowledged.
            if self._row is None or row.revision >= self._row.revision:
                self._row, self._read_at = row, time.monotonic()

    def _late(self) -> list[UUID]:
        """Returns the workers that can acknowledge the present revision now and have not. Under the lock."""
        if self._row is None or any(number for old, number in self._under_way.items() if old < self._row.revision):
            return []
        return [worker for worker, revision in self._acknowledged.items() if revision < self._row.revision]


def _dropped(name: str) -> NotThere:
    return NotThere(f"the projection {name!r} is not in the database", hint="run `todoku migrate`, which creates it")
