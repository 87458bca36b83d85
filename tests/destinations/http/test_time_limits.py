"""The time limit of each request, with one timer for all: it interrupts those whose time is over, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from todoku.destinations.time_limits import TimeLimits

LONG = 3600.0
SHORT = 0.01


async def wait_within(limits: TimeLimits, seconds: float, what: asyncio.Event) -> str:
    try:
        with limits.within(seconds):
            await what.wait()
    except TimeoutError:
        return "over"
    return "done"


async def test_a_block_that_waits_longer_than_its_limit_is_interrupted() -> None:
    assert await wait_within(TimeLimits(), SHORT, asyncio.Event()) == "over"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the task can be cancelled by others as before"


async def test_a_short_limit_that_begins_after_a_long_one_ends_first() -> None:
    limits, event = TimeLimits(), asyncio.Event()
    long = asyncio.create_task(wait_within(limits, LONG, event))
    await asyncio.sleep(0)
    assert await wait_within(limits, SHORT, event) == "over"
    assert await wait_within(limits, SHORT, event) == "over", "the timer is set again after it has rung"
    assert not long.done()
    event.set()
    assert await long == "done"


async def test_the_limit_of_a_block_that_has_ended_interrupts_nothing_later() -> None:
    limits, event = TimeLimits(), asyncio.Event()
    event.set()
    assert await wait_within(limits, SHORT, event) == "done"
    never = asyncio.Event()
    assert await wait_within(limits, 2 * SHORT, never) == "over", "the timer of the first rings while this waits"


async def test_a_limit_that_is_over_from_the_start_interrupts_the_first_wait() -> None:
    assert await wait_within(TimeLimits(), 0.0, asyncio.Event()) == "over"


async def test_a_task_that_somebody_else_cancels_ends_as_cancelled_and_not_as_late() -> None:
    limits = TimeLimits()
    waiting = asyncio.create_task(wait_within(limits, LONG, asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_task_that_is_cancelled_in_the_moment_its_time_is_over_ends_as_cancelled() -> None:
    """A drain must not be taken for a slow receiver."""
    limits = TimeLimits()
    limit = limits.within(LONG)

    async def block() -> None:
        with limit:
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    limit.end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_each_task_has_its_own_limit() -> None:
    limits, event = TimeLimits(), asyncio.Event()
    late = [asyncio.create_task(wait_within(limits, SHORT, event)) for _ in range(20)]
    patient = [asyncio.create_task(wait_within(limits, LONG, event)) for _ in range(20)]
    assert await asyncio.gather(*late) == ["over"] * 20
    event.set()
    assert await asyncio.gather(*patient) == ["done"] * 20
