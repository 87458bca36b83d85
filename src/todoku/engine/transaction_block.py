"""A block inside a transaction: `with` and `async with` over one implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from todoku.engine.outbox import Outbox, refuse_in_event_loop
from todoku.store.join import run, run_async
from todoku.store.publish import Publishing
from todoku.store.savepoint import asavepoint, savepoint
from todoku.store.statements import Steps

T = TypeVar("T")


class BlockSteps(msgspec.Struct, Generic[T], frozen=True):
    """The steps of a block: at its begin, at its end, and (only without a caller's transaction) when it raises."""

    begin: Callable[[Publishing], Steps[T]]
    end: Callable[[Publishing], Steps[None]]
    undo: Callable[[Publishing], Steps[None]]


class Block(Generic[T]):
    """Runs steps in the caller's transaction `tx` before and after the code inside the block.

    If that code raises, the steps and its own writes are rolled back (a savepoint), even if the caller then commits.
    With `tx=None`, begin and end are separate transactions.
    """

    def __init__(self, outbox: Outbox, tx: Any, parts: BlockSteps[T], *, twin: str) -> None:
        self._outbox = outbox
        self._tx = tx
        self._parts = parts
        self._twin = twin
        self._sync: Any = None
        self._async: Any = None

    def __enter__(self) -> T:
        self._sync = self._blocking()
        return self._sync.__enter__()  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._sync.__exit__(kind, error, trace)  # type: ignore[no-any-return]

    async def __aenter__(self) -> T:
        self._async = self._awaiting()
        return await self._async.__aenter__()  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._async.__aexit__(kind, error, trace)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------- inside

    @contextmanager
    def _blocking(self) -> Iterator[T]:
        outbox, parts = self._outbox, self._parts
        if self._tx is None:
            refuse_in_event_loop(self._twin)
            value = outbox.store.run(parts.begin(outbox.publishing()))
            try:
                yield value
            except BaseException:
                outbox.store.run(parts.undo(outbox.publishing()))
                raise
            outbox.store.run(parts.end(outbox.publishing()))
            return
        to = outbox.publishing()
        with savepoint(self._tx, to, twin=self._twin):
            yield run(self._tx, to.dialect, parts.begin(to), twin=self._twin)
            run(self._tx, to.dialect, parts.end(outbox.publishing()))

    @asynccontextmanager
    async def _awaiting(self) -> AsyncIterator[T]:
        outbox, parts = self._outbox, self._parts
        if self._tx is None:
            value = await asyncio.to_thread(outbox.store.run, parts.begin(outbox.publishing()))
            try:
                yield value
            except BaseException:
                await asyncio.to_thread(outbox.store.run, parts.undo(outbox.publishing()))
                raise
            await asyncio.to_thread(outbox.store.run, parts.end(outbox.publishing()))
            return
        to = outbox.publishing()
        async with asavepoint(self._tx, to):
            yield await run_async(self._tx, to.dialect, parts.begin(to))
            await run_async(self._tx, to.dialect, parts.end(outbox.publishing()))
