"""A savepoint in the caller's transaction: a failure inside it leaves the rest of the transaction as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from todoku.core.errors import TransactionError
from todoku.store.publish import Publishing
from todoku.store.statements import Steps


class Savepoint:
    """Undoes the statements inside `async with` if it raises; the transaction goes on either way.

    `run` runs statements in the caller's transaction, and waits for them in the caller's way.
    """

    def __init__(self, to: Publishing, run: Callable[[Steps[None]], Awaitable[None]]) -> None:
        self._to = to
        self._run = run

    async def __aenter__(self) -> None:
        await self._run(_open(self._to))

    async def __aexit__(
        self, _kind: type[BaseException] | None, failure: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if failure is None:
            await self._run(_close(self._to))
            return
        try:
            await self._run(_undo(self._to))
        except Exception as error:
            # The database has ended the whole transaction: the caller must know that its own rows are gone too.
            raise TransactionError(
                f"your transaction did not survive: {failure}", hint="roll back and begin it again"
            ) from error


def _open(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_open")
    yield to.one("savepoint")


def _undo(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_undo")
    yield to.one("savepoint_close")


def _close(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_close")
