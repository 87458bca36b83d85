"""Pings of destinations that support it: while a ping fails, the destination's deliveries wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from todoku.engine.registry import Registry

_INTERVAL: Final = 5.0
_TIMEOUT: Final = 2.0


class OnChange(Protocol):
    """A callback for the result of a ping."""

    def __call__(self, destination: str, *, ok: bool) -> None:
        """Called after every failed ping, and after the first successful one that follows."""


class PingTask:
    """One task that pings every destination that has `async ping()`."""

    def __init__(self, registry: Registry, *, on_change: OnChange) -> None:
        self._pings: dict[str, Callable[[], Awaitable[Any]]] = {
            target.name: ping
            for target in registry
            if target.sender is not None and (ping := getattr(target.sender, "ping", None)) is not None
        }
        self._on_change = on_change
        self._failing: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def failing(self) -> tuple[str, ...]:
        """The destinations whose last ping failed."""
        return tuple(sorted(self._failing))

    def start(self) -> None:
        """Starts pinging, in the running event loop."""
        if self._pings:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._run(), name="todoku pinging")

    def stop(self) -> None:
        """Stops pinging. May be called from any thread."""
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _run(self) -> None:
        while True:
            for name, ping in self._pings.items():
                await self._ping(name, ping)
            await asyncio.sleep(_INTERVAL)

    async def _ping(self, name: str, ping: Callable[[], Awaitable[Any]]) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await ping()
        except Exception:  # noqa: BLE001 - any error means that it does not answer; `failing` and the breaker show it
            self._failing.add(name)
            await asyncio.to_thread(self._on_change, name, ok=False)
            return
        if name in self._failing:
            self._failing.discard(name)
            await asyncio.to_thread(self._on_change, name, ok=True)
