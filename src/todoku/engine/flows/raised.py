"""What code of the application raises: in the event loop of a worker only an Exception is one failed attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from todoku.engine.execute import as_exception
from todoku.engine.flows.run import RunStopped


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Raises RuntimeError for what is no Exception, such as SystemExit: it would end more than the attempt.

    That the run is stopped, this task is cancelled, or somebody has pressed Ctrl-C, stays what it is.
    """
    try:
        yield
    except (Exception, RunStopped, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        raise as_exception(error) from error


async def call_workflow(call: Callable[[], Awaitable[Any]]) -> Any:
    """Calls the function of a workflow."""
    with as_exceptions():
        return await call()
