"""The end of a worker's event loop: pools stop, and destinations close the connections they opened in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from todoku.engine.observability.log import Log
from todoku.engine.registry import Registry
from todoku.engine.worker.pools import Pools

_TIMEOUT: Final = 5.0


async def shut_down(pools: Pools, registry: Registry) -> None:
    """Stops the pools, then closes each destination that has `async aclose()`. Logs those that fail or hang."""
    pools.stop()
    closings = {
        target.name: close
        for target in registry
        if target.sender is not None and (close := getattr(target.sender, "aclose", None)) is not None
    }
    await asyncio.gather(*(_close(name, close) for name, close in closings.items()))


async def _close(name: str, close: Callable[[], Awaitable[Any]]) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT):
            await close()
    except Exception as error:  # noqa: BLE001 - the worker ends in any case
        Log(adapter=name).warning("NOT_CLOSED", error_type=type(error).__name__)
