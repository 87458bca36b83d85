"""Rules of runs that nothing else here shows by itself: R5, R7, R8, R11 (the table is in docs/model.md)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import todoku
from tests.flows.conftest import Clock
from tests.support.crew import until

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def charge(order: int) -> int:
    calls.append(("charge", order))
    return order


async def ship(order: int) -> int:
    calls.append(("ship", order))
    return order


def refund(payment: int | None) -> None:
    calls.append(("refund", payment))


def test_an_undo_waits_for_the_children_that_still_run(box: todoku.App, clock: Clock) -> None:
    """R5: what a child does after the refund would be undone by nobody."""
    begun: list[todoku.Handle[Any]] = []

    def give_up() -> None:
        assert begun[0].cancel(by="ops", why="changed her mind")
        box.drain()  # the undo begins, sees that a child runs, and sleeps

    @box.job
    def pick() -> None:  # in a thread, which no cancel stops
        give_up()
        calls.append("picked")

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=refund)
        await ctx.gather(pick.call())

    begun.append(fulfil.start())
    box.drain()
    assert calls == [("charge", 1), "picked"]
    clock.forward(60)
    box.drain()
    assert calls == [("charge", 1), "picked", ("refund", 1)]


def test_a_limit_of_a_key_counts_running_attempts_and_not_runs_that_wait(box: todoku.App) -> None:
    """R7: the second run of a key would wait as long as the first one sleeps."""

    @box.workflow(per_key=todoku.Limit(concurrency=1))
    async def fulfil(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order)
        await ctx.wait("approval")

    first, second = (fulfil.using(key="tenant").start(order) for order in (1, 2))
    box.drain()
    assert sorted(calls) == [("charge", 1), ("charge", 2)]
    for run in (first, second):
        box.signal(run.id, "approval", tx=None)
    box.drain()
    assert (first.status(), second.status()) == ("succeeded", "succeeded")


def test_the_time_of_an_attempt_begins_anew_with_each_stored_step(box: todoku.App) -> None:
    """R8: `timeout` bounds the time without progress."""
    deadlines: list[float] = []

    @box.workflow(timeout=3600)
    async def fulfil(ctx: todoku.Flow) -> None:
        for order in range(3):
            deadlines.append(ctx.deadline)
            await ctx.step(charge, order)

    run = fulfil.start()
    box.drain()
    assert run.status() == "succeeded"
    assert len(set(deadlines)) == 3
    assert deadlines == sorted(deadlines)


def in_thread(worker: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    return thread


def test_a_run_on_a_worker_that_drains_stops_at_the_next_step_and_keeps_its_attempt(box: todoku.App) -> None:
    """R8: the step that is under way is stored, the next one is another worker's."""
    worker, drain = box.worker(), list[Callable[[], Any]]()

    async def deploy(order: int) -> int:
        drain[0]()
        return order

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(deploy, 1)
        await ctx.step(ship, 1)

    worker = box.worker()
    drain.append(worker.drain)
    run = fulfil.start()
    thread = in_thread(worker)
    thread.join(60)
    assert not thread.is_alive()
    assert (calls, run.status(), run.delivery().attempts) == ([], "pending", 0)
    box.drain()
    assert (calls, run.status()) == ([("ship", 1)], "succeeded")


def test_a_run_that_is_cancelled_while_it_runs_stops_at_the_next_step(box: todoku.App) -> None:
    """R8, R5: the step that is under way is stored, so its undo gets its result."""
    contexts: list[todoku.Flow] = []

    async def charge_slowly(order: int) -> int:
        cancel = runs[0].cancel
        await asyncio.to_thread(lambda: cancel(by="ops", why="changed her mind"))
        while not contexts[0].cancelled():  # noqa: ASYNC110 - a handler asks, too
            await asyncio.sleep(0.01)
        return order

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        contexts.append(ctx)
        await ctx.step(charge_slowly, 7, undo=refund)
        await ctx.step(ship, 7)

    runs = [fulfil.start()]
    worker = box.worker()
    thread = in_thread(worker)
    try:
        until(lambda: calls == [("refund", 7)], what="the undo")
    finally:
        worker.drain()
        thread.join(60)
    assert (runs[0].status(), runs[0].delivery().reason) == ("aborted", "CANCELLED")


def test_a_child_that_is_replayed_later_changes_nothing(box: todoku.App, clock: Clock) -> None:
    """R11: how the children ended is stored before the run goes on."""
    refusals = [True, False]

    @box.job
    async def pick() -> str:
        if refusals.pop(0):
            raise todoku.Abort("SOLD_OUT")
        return "picked"

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        (end,) = await ctx.gather(pick.call(), return_exceptions=True)
        calls.append(str(end))
        await ctx.sleep(60)

    run = fulfil.start()
    box.drain()
    (dead,) = box.deliveries.find(status="aborted").items
    box.deliveries.replay(dead.id, by="ops", why="there are some again")
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.status() == "succeeded"
    assert refusals == []
    assert len(calls) == 2
    assert len(set(calls)) == 1


DAY = 86_400.0


@pytest.mark.parametrize("how", ["gather", "race"])
def test_results_of_children_are_kept_while_the_run_waits_for_others(box: todoku.App, clock: Clock, how: str) -> None:
    """R11: their history and their results are removed after 30 days, and the run waits for longer."""

    @box.job
    async def pick(sku: str) -> str:
        return f"a box of {sku}"

    @box.job
    async def refuse() -> str:
        raise todoku.Abort("SOLD_OUT")

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> list[str]:
        late = pick.using(delay=50 * DAY).call("rice")
        if how == "race":
            return [await ctx.race(refuse.call(), late)]
        return await ctx.gather(pick.call("tea"), late, pick.using(delay=10 * DAY).call("salt"))

    run = fulfil.start()
    for _ in range(6):
        box.drain()
        clock.forward(10 * DAY)
        box.store.retention.prune(history_ttl=30 * DAY)
    box.drain()
    expected = ["a box of tea", "a box of rice", "a box of salt"] if how == "gather" else ["a box of rice"]
    assert run.status() == "succeeded"
    assert run.result() == expected


def test_what_is_kept_of_children_is_read_after_their_history(
    box: todoku.App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: prune runs while a worker reads how the children ended."""
    find = box.store.deliveries.standing

    @box.job
    async def pick(sku: str) -> str:
        return f"a box of {sku}"

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> list[str]:
        return await ctx.gather(pick.call("tea"), pick.using(delay=40 * DAY).call("rice"))

    def prune_first(*given: Any) -> Any:
        box.store.retention.prune(history_ttl=30 * DAY)
        return find(*given)

    run = fulfil.start()
    box.drain()
    clock.forward(41 * DAY)
    monkeypatch.setattr(box.store.deliveries, "standing", prune_first)
    box.drain()
    assert run.status() == "succeeded"
    assert run.result() == ["a box of tea", "a box of rice"]
