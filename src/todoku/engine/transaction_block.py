"""A block inside a transaction: `with` and `async with` over one implementation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from todoku.engine.outbox import Outbox
from todoku.engine.twins import later, now
from todoku.store.publish import Publishing
from todoku.store.savepoint import Savepoint
from todoku.store.statements import Steps

T = TypeVar("T")


class BlockSteps(msgspec.Struct, Generic[T], frozen=True):
    """The statements of a block: at its beginning, at its end, and, without a caller's transaction, after a failure."""

    begin: Callable[[Publishing], Steps[T]]
    end: Callable[[Publishing], Steps[None]]
    undo: Callable[[Publishing], Steps[None]]


class Block(Generic[T]):
    """Statements before and after the code inside `with`, or `async with`, in the caller's transaction `tx`.

    If the code raises, its own writes in `tx` and these statements are undone, even if the caller then commits. With
    `tx=None` the statements before and after are a transaction each.
    """

    def __init__(self, outbox: Outbox, tx: Any, parts: BlockSteps[T], *, twin: str) -> None:
        self._outbox = outbox
        self._tx = tx
        self._parts = parts
        self._twin = twin
        self._open = AsyncExitStack()

    def __enter__(self) -> T:
        return now(self._begin(), self._twin)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        now(self._end(error), self._twin)

    async def __aenter__(self) -> T:
        return await later(self._begin())

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await later(self._end(error))

    # ------------------------------------------------------------------------------------------- inside

    async def _begin(self) -> T:
        outbox, to = self._outbox, self._outbox.publishing()
        async with AsyncExitStack() as opening:
            if self._tx is not None:
                await opening.enter_async_context(Savepoint(to, partial(outbox.run, self._tx)))
            value = await outbox.run(self._tx, self._parts.begin(to))
            self._open = opening.pop_all()
        return value

    async def _end(self, error: BaseException | None) -> None:
        outbox, to = self._outbox, self._outbox.publishing()
        if error is None:
            async with self._open:
                await outbox.run(self._tx, self._parts.end(to))
            return
        if self._tx is None:
            await outbox.run(None, self._parts.undo(to))
        await self._open.__aexit__(type(error), error, error.__traceback__)
