"""Concurrent branches of a run: when it parks, and what becomes of a branch that is left behind (R9)."""

from __future__ import annotations

import asyncio
import threading

import todoku
from tests.flows.conftest import Clock
from tests.flows.running import working
from tests.support.pack import until
from todoku.engine.worker.step_pools import LEAST_STEPS


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
    attempts: list[int] = []

    async def after() -> None:
        called.append("after")

    @box.workflow(max_attempts=2, backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> None:
        async def branch() -> None:
            await ctx.sleep(0.015)
            await ctx.step(after)

        attempts.append(1)
        if len(attempts) == 1:
            left = asyncio.ensure_future(branch())
            left.add_done_callback(lambda task: task.cancelled() or task.exception())
            await ctx.step(note, "one commit later")
            raise ConnectionError("the run fails while a branch goes on")
        await asyncio.sleep(0.1)  # while the timer of the branch ends

    run = flow.start()
    box.drain()
    assert (run.status(), called) == ("succeeded", [])


def test_a_step_that_waits_for_a_thread_is_not_called_after_its_run_has_failed(box: todoku.App) -> None:
    """The next attempt calls it; it may have stored it before a thread is free for this one."""
    begun, called = threading.Semaphore(0), list[str]()
    release = threading.Event()

    def occupy(_number: int) -> None:
        begun.release()
        release.wait(60)

    def late() -> None:
        called.append("late")

    async def fail_beside_them() -> None:
        for _ in range(LEAST_STEPS):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        raise ConnectionError("another branch")

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> None:
        occupying = (ctx.step(occupy, number) for number in range(LEAST_STEPS))
        await asyncio.gather(*occupying, ctx.step(late), ctx.step(fail_beside_them))

    @box.workflow
    async def other(ctx: todoku.Flow) -> None:
        await ctx.step(called.append, "next in line")

    run = flow.start()
    with working(box):
        until(lambda: run.status() == "aborted", "the run to end")
        behind = other.start()
        release.set()
        until(lambda: behind.status() == "succeeded", "the next step in line to end")
    assert called == ["next in line"]


def test_equal_waits_and_values_of_two_branches_are_told_apart_by_their_turn(box: todoku.App) -> None:
    """R9: it does not matter which of them has which."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[int]:
        one, other = await asyncio.gather(ctx.uuid(), ctx.uuid())
        assert one != other
        return sorted(await asyncio.gather(ctx.wait("number", int), ctx.wait("number", int)))

    run = flow.start()
    box.drain()
    for number in (1, 2):
        box.signal(run, "number", number, tx=None)
    box.drain()
    assert run.result(timeout=0) == [1, 2]


def test_a_changed_step_beside_a_wait_stops_the_run_now_and_not_after_the_signal(box: todoku.App, clock: Clock) -> None:
    """R1, R9: the signal may never come."""
    asked = ["one"]

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.sleep(60)
        await asyncio.gather(ctx.step(note, asked[0]), ctx.wait("word", str))

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.status() == "pending"
    asked[0] = "other"
    box.deliveries.settle(run.delivery().id, succeeded=False, by="ada", why="a test")
    box.deliveries.replay(run.delivery().id, by="ada", why="a test")
    box.drain()
    assert run.delivery().reason == "STEP_CHANGED"


class Reading:
    """What runs call whose second attempt reads a stored step below ten nested gathers."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.has_failed = False

    async def note(self, word: str) -> str:
        self.called.append(word)
        return word

    async def fail_once(self, word: str) -> str:
        self.called.append(word)
        if not self.has_failed:
            self.has_failed = True
            raise ConnectionError
        return word

    async def below(self, ctx: todoku.Flow, depth: int) -> None:
        if depth:
            await asyncio.gather(self.below(ctx, depth - 1))
        else:
            await ctx.step(self.note, "below")


def test_a_branch_that_reads_stored_steps_of_nested_branches_has_not_left_any_over(box: todoku.App) -> None:
    """R1: whether a stored step is left over is known when nothing of the run goes on; a stored step takes no time,
    but gathers that end take turns of the event loop."""
    reading, behind = Reading(), asyncio.Event()

    @box.workflow(backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> None:
        async def deep() -> None:
            await reading.below(ctx, 10)
            await ctx.step(reading.note, "behind")
            behind.set()

        async def flat() -> None:
            if not reading.called:
                await behind.wait()
                raise ConnectionError
            await ctx.step(reading.note, "new")

        await asyncio.gather(deep(), flat())

    run = flow.start()
    box.drain()
    assert reading.called == ["below", "behind", "new"]
    assert run.status() == "succeeded"


def test_a_run_does_not_park_while_a_branch_reads_stored_steps_of_nested_branches(box: todoku.App) -> None:
    """R9: what this branch calls next would otherwise wait for the signal, too."""
    reading = Reading()

    @box.workflow(backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> str:
        async def deep() -> None:
            await reading.below(ctx, 10)
            await ctx.step(reading.fail_once, "behind")

        word, _ = await asyncio.gather(ctx.wait("word", str), deep())
        return word

    run = flow.start()
    box.drain()
    assert reading.called == ["below", "behind", "behind"]
    assert run.status() == "pending"


def test_a_run_parks_after_a_branch_whose_last_act_was_to_read_a_stored_step(box: todoku.App) -> None:
    """R9: nothing of that branch begins or ends after it."""
    reading = Reading()

    @box.workflow(backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> None:
        async def deep() -> None:
            await reading.below(ctx, 10)
            await reading.fail_once("behind")

        await asyncio.gather(ctx.sleep(60), deep())

    run = flow.start()
    box.drain()
    assert (run.status(), reading.called) == ("pending", ["below", "behind", "behind"])


def test_a_value_with_a_key_stays_with_its_branch_whichever_comes_first(box: todoku.App, clock: Clock) -> None:
    """R9: the first time `late` draws last; when the run goes on, its sleep is over and it draws first."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[str]:
        async def early() -> str:
            await ctx.step(note, "before")
            drawn = str(await ctx.uuid(key="early"))
            return await ctx.step(note, drawn)

        async def late() -> str:
            await ctx.sleep(60)
            drawn = str(await ctx.uuid(key="late"))
            await ctx.wait("go", str)
            return await ctx.step(note, drawn)

        return list(await asyncio.gather(early(), late()))

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    box.signal(run, "go", "", tx=None)
    box.drain()
    first, second = run.result(timeout=0)
    assert first != second
