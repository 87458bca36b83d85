"""A savepoint in the caller's transaction: a failure inside it does not undo the rest of the transaction."""

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
    """Undoes the writes of the block if it raises; the transaction stays open either way. `twin`: as in `run`."""
    run(tx, to.dialect, _open(to), twin=twin)
    try:
        yield
    except BaseException as failure:
        try:
            run(tx, to.dialect, _undo(to))
        except Exception as error:
            raise _transaction_lost(failure) from error
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
            raise _transaction_lost(failure) from error
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


def _transaction_lost(failure: BaseException) -> TransactionError:
    """The error if the database has ended the whole transaction: the caller's own rows are lost, too."""
    return TransactionError(f"the database ended your transaction: {failure}", hint="roll back and begin it again")
