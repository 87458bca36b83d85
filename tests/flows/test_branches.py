"""Concurrent branches of a run: when it parks, and what becomes of a branch that is left behind (R9)."""

from __future__ import annotations

import asyncio

import todoku
from tests.flows.conftest import Clock


async def note(word: str) -> str:
    return word


def test_a_run_parks_also_after_a_branch_whose_last_act_was_a_short_sleep(box: todoku.App) -> None:
    """R9: the sleep is waited for in the slot, and nothing of that branch comes after it."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        word, _ = await asyncio.gather(ctx.wait("word", str), ctx.sleep(0.01))
        return word

    run = flow.start()
    box.drain()
    assert run.status() == "pending"
    box.signal(run, "word", "yes", tx=None)
    box.drain()
    assert run.result(timeout=0) == "yes"


def test_two_branches_may_sleep_equally_long_at_once(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[str]:
        async def branch(word: str) -> str:
            await ctx.sleep(60)
            return await ctx.step(note, word)

        return list(await asyncio.gather(branch("a"), branch("b")))

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == ["a", "b"]


def test_a_branch_that_is_left_behind_begins_nothing_more(box: todoku.App) -> None:
    """The next attempt of the run calls its steps: a branch of the last one would call them again."""
    called: list[str] = []
    released = asyncio.Event()

    async def slow() -> None:
        await released.wait()

    async def after() -> None:
        called.append("after")

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> None:
        async def branch() -> None:
            await ctx.step(slow)
            await ctx.step(after)

        left = asyncio.ensure_future(branch())
        left.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, released.set)
        raise ConnectionError("the run fails while a branch goes on")

    async def start_and_drain() -> None:
        run = await flow.astart()
        await box.adrain()
        assert (await run.astatus()) == "aborted"
        await asyncio.sleep(0.2)

    asyncio.run(start_and_drain())
    assert called == []
