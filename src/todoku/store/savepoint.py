"""A savepoint in the caller's transaction: what fails inside it leaves the rest of the transaction as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from todoku.core.errors import TransactionError
from todoku.store.join import run, run_async
from todoku.store.publish import Publishing
from todoku.store.statements import Steps


@contextmanager
def savepoint(tx: Any, to: Publishing, *, twin: str) -> Iterator[None]:
    """Undo what was done inside if it raises; the transaction goes on either way. `twin`: as of `run`."""
    run(tx, to.dialect, _open(to), twin=twin)
    try:
        yield
    except BaseException as failure:
        try:
            run(tx, to.dialect, _undo(to))
        except Exception as error:
            raise _ended(failure) from error
        raise
    run(tx, to.dialect, _close(to))


@asynccontextmanager
async def asavepoint(tx: Any, to: Publishing) -> AsyncIterator[None]:
    """As `savepoint`, for async code."""
    await run_async(tx, to.dialect, _open(to))
    try:
        yield
    except BaseException as failure:
        try:
            await run_async(tx, to.dialect, _undo(to))
        except Exception as error:
            raise _ended(failure) from error
        raise
    await run_async(tx, to.dialect, _close(to))


def _open(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_open")
    yield to.one("savepoint")


def _undo(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_undo")
    yield to.one("savepoint_close")


def _close(to: Publishing) -> Steps[None]:
    yield to.one("savepoint_close")


def _ended(failure: BaseException) -> TransactionError:
    """The database has ended the whole transaction: the caller's rows are gone too, and that is not to be hidden."""
    return TransactionError(f"your transaction did not survive: {failure}", hint="roll back and begin it again")
