"""Workers for tests: handlers by name, run here until nothing is due, or in a thread until they are drained."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.world import World
from todoku.core.backoff import table
from todoku.engine.context import Context
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Registry, Target
from todoku.engine.worker.worker import Worker


class Crew:
    """What a worker of this test can do, and the workers themselves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.registry = Registry()
        self.seen: list[Context] = []

    def handles(self, name: str, call: Callable[[Context], Any] | None = None, **options: Any) -> Target:
        """Register an async handler (or, with run="thread", a plain one). Without `call` it only notes its context."""

        async def note(ctx: Context) -> None:
            self.seen.append(ctx)

        options.setdefault("queue", name)
        options.setdefault("backoff", table(5, 10))
        return self.registry.add(Target(name=name, call=call or note, **options))

    def sends(self, sender: Any, *, name: str | None = None, **options: Any) -> Target:
        """Register a destination."""
        options.setdefault("queue", name or sender.name)
        options.setdefault("backoff", table(5, 10))
        return self.registry.add(Target(name=name or sender.name, sender=sender, **options))

    def worker(self, *, limit: int | None = None, telemetry: Telemetry | None = None, **settings: Any) -> Worker:
        """A worker on stores of its own, as another process has."""
        store = self.world.another_store(**settings)
        return Worker(
            store, self.world.another_store(**settings), self.registry, self.world.settings(**settings),
            telemetry=telemetry or Telemetry(), limit=limit,
        )  # fmt: skip

    def drain(self, **options: Any) -> int:
        """Run what is due, here and now."""
        return asyncio.run(self.worker(**options).run(until_idle=True))

    @contextmanager
    def running(self, *, on_stuck: Callable[[], None] | None = None, **options: Any) -> Iterator[Worker]:
        """A worker in a thread with a loop of its own; drained at the end, and whatever it raised is raised."""
        worker = self.worker(**options)
        worker.on_stuck = on_stuck
        errors: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(worker.run())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield worker
        finally:
            worker.drain()
            thread.join(timeout=120)
            assert not thread.is_alive(), "the worker does not end"
            if errors:
                raise errors[0]


def until(true: Callable[[], object], *, seconds: float = 60.0, what: str = "it") -> None:
    """Come back as soon as something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds:g} s"
        time.sleep(0.005)
