"""A worker process whose workflow has a shape of chance, and notes what each of its steps does."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import todoku
from tests.crash.flow_shapes import WAITS, Op, shape_of
from tests.support.receiver import Receiver
from todoku.core.errors import JobAborted
from todoku.daemon.child import run_loop
from todoku.engine.observability.log import configure_logging
from todoku.testing.armed import arm_from

EFFECTS = "create table flow_effect (run bigint not null, place text not null)"
UNDO = "undo "


class Workplace:
    """What the steps of one process share. Its failpoint is armed once so many steps have begun in it."""

    receiver: Receiver
    insert: str

    def open(self) -> None:
        self.receiver = Receiver(Path(os.environ["TODOKU_TEST_RECEIVER"]))
        self._marks = Path(os.environ["TODOKU_TEST_MARKS"])
        mark = "?" if os.environ["TODOKU_DATABASE"].startswith("sqlite") else "%s"
        self.insert = f"insert into flow_effect (run, place) values ({mark}, {mark})"
        self._arm, _, number = os.environ.get("TODOKU_TEST_ARM", "").partition("@")
        self._left = int(number or 0)

    def called(self, run: int, place: str) -> Any:
        self._left -= 1
        if self._left == 0:
            arm_from({"TODOKU_FAILPOINTS": self._arm})
        return self.receiver.attempt(str(run), place, 1)

    def is_first(self, run: int, place: str) -> bool:
        """Whether no process has come here before, also none that was killed."""
        with suppress(FileExistsError):
            (self._marks / f"{run}{place}").touch(exist_ok=False)
            return True
        return False


here = Workplace()


async def outer(run: int, place: str) -> str:
    with here.called(run, place):
        await asyncio.sleep(0.002)
    return place


def threaded(run: int, place: str) -> str:
    with here.called(run, place):
        time.sleep(0.002)
    return place


def booked(tx: Any, run: int, place: str) -> str:
    with here.called(run, place):
        tx.execute(here.insert, (run, place))
    return place


async def flaky(run: int, place: str) -> str:
    with here.called(run, place):
        if here.is_first(run, place):
            raise ConnectionError("planned")
    return place


async def doomed(run: int, place: str) -> str:
    with here.called(run, place):
        raise ConnectionError("planned")


def apart(run: int, place: str) -> str:
    """Called in a process of its own, which is not told where to note what it does."""
    if not hasattr(here, "receiver"):
        here.open()
    return threaded(run, place)


def undo(run: int, place: str, _result: str | None) -> None:
    with here.called(run, UNDO + place):
        time.sleep(0.001)


def flow_app(database: str | None = None) -> todoku.App:
    """The App. One that only starts runs needs no workplace."""
    box = todoku.App(database)

    @box.job(backoff=todoku.table(0.01), max_attempts=1000)
    async def child(number: int, place: str) -> int:
        if number == 2:
            raise todoku.Abort("PLANNED")
        return number * number

    @box.workflow(backoff=todoku.table(0.01), max_attempts=50)
    async def flow(ctx: todoku.Flow, seed: int) -> list[Any]:
        return await Walk(ctx, seed, child).whole()

    @box.workflow(backoff=todoku.table(0.01), max_attempts=50)
    def plain(ctx: todoku.BlockingFlow, seed: int) -> list[Any]:
        try:
            Walk(Unblocked(ctx), seed, child).whole().send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a plain workflow has awaited something")

    return box


class Unblocked:
    """A BlockingFlow, for code that awaits its calls."""

    def __init__(self, ctx: todoku.BlockingFlow) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            return getattr(self._ctx, name)(*args, **options)

        return call


class Walk:
    """One attempt of a run through its shape."""

    def __init__(self, ctx: todoku.Flow | Unblocked, seed: int, child: Any) -> None:
        self._ctx: Any = ctx
        self._seed = seed
        self._child = child
        self._shape = shape_of(seed)

    async def whole(self) -> list[Any]:
        values = await self.all(self._shape.ops, "")
        if self._shape.gives_up:
            raise todoku.Abort("GIVEN_UP")
        return values

    async def all(self, ops: tuple[Op, ...], path: str) -> list[Any]:
        values: list[Any] = []
        for number, op in enumerate(ops):
            place = f"{path}.{number}"
            match op.kind:
                case "loop":
                    for turn in range(op.number):
                        values += await self.all(op.below[0], f"{place}.{turn}")
                case "branches":
                    branches = (self.all(below, f"{place}.{branch}") for branch, below in enumerate(op.below))
                    parts = [await each for each in branches] if self._shape.plain else await asyncio.gather(*branches)
                    values += [value for part in parts for value in part]
                case _:
                    values.append(await self._one(op, place))
                    here.receiver.acknowledged(str(self._seed), (place,))
        return values

    async def _one(self, op: Op, place: str) -> Any:
        ctx = self._ctx
        match op.kind:
            case "sleep":
                await ctx.sleep(op.number / 1000)
                return "slept"
            case "children":
                calls = (self._child.call(number, place) for number in range(op.number % 4))
                ends = await ctx.gather(*calls, return_exceptions=True)
                return ["given up" if isinstance(end, JobAborted) else end for end in ends]
            case kind if kind in WAITS:
                return await ctx.wait(place, str)
            case "doomed":
                with suppress(todoku.StepFailed):
                    return await ctx.step(doomed, self._seed, place, max_attempts=2, backoff=todoku.table(0.01))
                return "failed"
            case "flaky":
                return await ctx.step(flaky, self._seed, place, max_attempts=9, backoff=todoku.table(0.01))
            case "apart":
                return await ctx.step(apart, self._seed, place, run="process")
            case "shaky":
                return await ctx.step(flaky, self._seed, place)
            case _:
                return await self._undoable(op, place)

    async def _undoable(self, op: Op, place: str) -> str:
        way: Any = partial(undo, self._seed, place) if self._shape.gives_up else None
        if op.kind == "booked":
            done: str = await self._ctx.step(booked, self._seed, place, transactional=True, undo=way)
            return done
        function: Callable[[int, str], Any] = outer if op.kind == "outer" else threaded
        result: str = await self._ctx.step(function, self._seed, place, undo=way)
        return result


def start(box: todoku.App, seed: int) -> UUID:
    """Start the run of this seed."""
    return box.jobs["plain" if shape_of(seed).plain else "flow"].start(seed).id  # type: ignore[attr-defined, no-any-return]


def worker() -> int:
    """A worker, as `todoku run` starts one: until it is told to drain."""
    configure_logging("json")
    here.open()
    box = flow_app(os.environ["TODOKU_DATABASE"])
    worker = box.worker()
    worker.on_incarnation = here.receiver.incarnated
    signal.signal(signal.SIGTERM, lambda *_: worker.drain())
    run_loop(worker.run())
    box.close()
    return 0
