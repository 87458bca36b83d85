"""The pools of a worker: one for each way of running that its targets need, and which destinations each serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from todoku.core.http_request import served_as
from todoku.core.settings import Settings
from todoku.engine.execute import Executor
from todoku.engine.registry import Registry, Target
from todoku.engine.settle import BATCH, SQLITE_BATCH
from todoku.engine.worker.pace import Ends
from todoku.engine.worker.pool import BoundedQueue, Pool
from todoku.engine.worker.process_pool import ProcessRunner
from todoku.engine.worker.slot_pool import SlotPool
from todoku.engine.worker.step_pools import StepPools
from todoku.engine.worker.thread_pool import Errand, ThreadPool, ThreadRunner

_CLAIMS_AHEAD: Final = 2
"""Full claims that may wait for a slot, unless the settings say how many deliveries: with one, slots that take
milliseconds rested while the next claim was on its way."""

DESTINATIONS_AT_ONCE: Final = 4
JOBS_AT_ONCE: Final = 3
REQUESTS_AHEAD: Final = 2 * BATCH
"""HTTP requests held beyond those running. Many hosts share them, and the busy event loop leaves the claimer little
time: with 500 the pool ran empty between claims."""


class Pools:
    """All pools of one worker. The HTTP pool comes last, so that its scan does not delay the claims of the others."""

    def __init__(self, registry: Registry, settings: Settings, executor: Executor, on_done: Callable[[], None]) -> None:
        kinds: dict[str, list[Target]] = {}
        for target in registry:
            kinds.setdefault(_kind(target), []).append(target)
        ordered = sorted(kinds.items(), key=lambda item: item[0] == "http")
        self.all = tuple(_pool(kind, targets, settings, executor, on_done) for kind, targets in ordered)
        self._by_name = {name: pool for pool in self.all for name in pool.destinations}
        self._processes = next(
            (pool for pool in self.all if isinstance(pool, ThreadPool) and pool.name == "process"), None
        )
        self._new_processes = partial(_thread_pool, "process", (), settings, executor, on_done)
        jobs = settings.concurrency or JOBS_AT_ONCE
        self._steps = executor.step_pools = StepPools(jobs, self._lend_process, registry.tidy)

    def _lend_process(self, errand: Errand) -> None:
        """Does an errand in the pool of processes. One that no handler needs starts with the first errand."""
        if self._processes is None:
            self._processes = self._new_processes()
            self._processes.start()
        self._processes.lend(errand)

    def stop(self) -> None:
        """Ends the slots of all pools. What still runs is not waited for."""
        for pool in self.all:
            pool.stop()
        if self._processes is not None and self._processes not in self.all:
            self._processes.stop()
        self._steps.stop()

    def of(self, destination: str) -> Pool:
        """Returns the pool that serves a destination."""
        return self._by_name.get(destination) or self._by_name[served_as(destination)]

    def done(self, ended: Mapping[str, Ends]) -> None:
        """Counts attempts that ended, given by destination, in the pace of their pools."""
        for destination, some in ended.items():
            self.of(destination).pace.done(some)


def _kind(target: Target) -> str:
    if target.sender is None:
        return target.run
    return "send" if target.at_once is None else "http"


def _pool(
    kind: str, targets: Sequence[Target], settings: Settings, executor: Executor, on_done: Callable[[], None]
) -> Pool:
    largest = SQLITE_BATCH if settings.database.startswith("sqlite") else BATCH
    names, most = tuple(target.name for target in targets), min(settings.batch or largest, largest)
    match kind:
        case "http":
            slots, ready = settings.http_concurrency, BoundedQueue(executor.registry)
            most = settings.batch or REQUESTS_AHEAD
            return SlotPool(kind, names, executor, slots=slots, most=most, on_done=on_done, ready=ready)
        case "send" | "loop":
            slots = settings.concurrency or (JOBS_AT_ONCE if kind == "loop" else DESTINATIONS_AT_ONCE)
            batch = max(target.batch for target in targets)
            ahead = _CLAIMS_AHEAD if settings.batch is None else 1
            return SlotPool(
                kind, names, executor, slots=slots, most=most, on_done=on_done, batch=batch, claims_ahead=ahead
            )
        case _:
            return _thread_pool(kind, names, settings, executor, on_done)


def _thread_pool(
    kind: str, names: tuple[str, ...], settings: Settings, executor: Executor, on_done: Callable[[], None]
) -> ThreadPool:
    """Creates the pool of plain handlers, in threads or in processes."""
    in_process = kind == "process"
    return ThreadPool(
        kind, names, executor, slots=settings.concurrency or JOBS_AT_ONCE, most=min(settings.batch or BATCH, BATCH),
        on_done=on_done,
        runner=lambda: ProcessRunner(settings.tracebacks) if in_process else ThreadRunner(executor),
    )  # fmt: skip
