"""Workflows whose runs of one key go one after the other: `ordered=True, hold_lane=True` (R7)."""

from __future__ import annotations

from typing import Any

import pytest

import todoku
from tests.flows.conftest import Clock
from tests.flows.running import working
from tests.flows.test_operations import broken, explained
from tests.support.crew import until
from todoku.core.errors import InvalidSetting

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def charge(order: int) -> int:
    calls.append(("charge", order))
    return order


def refund(payment: int | None) -> None:
    calls.append(("refund", payment))


async def ship(order: int) -> int:
    calls.append(("ship", order))
    return order


def declare(box: todoku.App, **options: Any) -> todoku.Workflow[[int], int]:
    """A workflow that charges, waits for an approval, and ships, one run of a key after the other."""

    @box.workflow(ordered=True, hold_lane=True, **options)
    async def fulfil(ctx: todoku.Flow, order: int) -> int:
        await ctx.step(charge, order, undo=refund)
        if not await ctx.wait("approval", bool):
            raise todoku.Abort("REFUSED")
        return await ctx.step(ship, order)

    return fulfil


def start(fulfil: todoku.Workflow[[int], int], *orders: int, key: str = "customer") -> list[todoku.Handle[int]]:
    return [fulfil.using(key=key).start(order) for order in orders]


def approve(box: todoku.App, run: todoku.Handle[int], answer: bool = True) -> None:
    box.signal(run, "approval", answer, tx=None)
    box.drain()


def by_order(*orders: int) -> list[tuple[str, int]]:
    return [(what, order) for order in orders for what in ("charge", "ship")]


# ------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"ordered": True}, "add hold_lane=True"),
        ({"ordered": True, "hold_lane": False}, "add hold_lane=True"),
        ({"hold_lane": True}, "add ordered=True"),
        ({"on_dead": "skip"}, "add ordered=True"),
        ({"ordered": True, "hold_lane": True, "per_key": todoku.Limit(concurrency=1)}, "one at a time already"),
    ],
)
def test_an_order_of_runs_says_that_one_that_waits_holds_up_the_others(
    box: todoku.App, options: Any, hint: str
) -> None:
    """R7"""
    with pytest.raises(InvalidSetting) as refused:

        @box.workflow(**options)
        async def flow(ctx: todoku.Flow) -> None: ...

    assert hint in (refused.value.hint or "")


# --------------------------------------------------------------------------------------------------- turns


def test_no_run_of_a_key_begins_before_the_one_before_it_has_ended(box: todoku.App) -> None:
    """R7: also if all signals are there at once."""
    fulfil = declare(box)
    runs = start(fulfil, 1, 2, 3)
    box.drain()
    assert calls == [("charge", 1)]
    for run in reversed(runs):
        box.signal(run, "approval", True, tx=None)
    box.drain()
    assert calls == by_order(1, 2, 3)
    assert [run.result() for run in runs] == [1, 2, 3]
    assert [run.delivery().attempts for run in runs] == [1, 1, 1]


def test_other_keys_and_runs_without_a_key_are_not_held_up(box: todoku.App) -> None:
    """R7"""
    fulfil = declare(box)
    start(fulfil, 1, 2)
    (other,) = start(fulfil, 3, key="another")
    free = fulfil.start(4)
    box.drain()
    assert sorted(calls) == [("charge", 1), ("charge", 3), ("charge", 4)]
    for run in (other, free):
        approve(box, run)
    assert (other.status(), free.status()) == ("succeeded", "succeeded")


def test_a_run_that_sleeps_holds_its_lane_until_its_time(box: todoku.App, clock: Clock) -> None:
    """R7"""

    @box.workflow(ordered=True, hold_lane=True)
    async def fulfil(ctx: todoku.Flow, order: int) -> int:
        await ctx.step(charge, order)
        await ctx.sleep(hours=1)
        return await ctx.step(ship, order)

    for order in (1, 2):
        fulfil.using(key="customer").start(order)
    box.drain()
    clock.forward(3599)
    box.drain()
    assert calls == [("charge", 1)]
    clock.forward(2)
    box.drain()
    assert calls == [*by_order(1), ("charge", 2)]


def test_children_are_in_no_lane_of_their_run(box: todoku.App) -> None:
    """R7, R11: they would wait for the run that waits for them."""

    @box.job
    async def pick(sku: str) -> str:
        return f"a box of {sku}"

    @box.workflow(ordered=True, hold_lane=True)
    async def fulfil(ctx: todoku.Flow, order: int) -> list[str]:
        return await ctx.gather(pick.call("tea"), pick.using(key="customer").call("rice"))

    runs = [fulfil.using(key="customer").start(order) for order in (1, 2)]
    box.drain()
    assert [run.result() for run in runs] == [["a box of tea", "a box of rice"]] * 2


def test_a_worker_at_work_wakes_a_run_that_holds_its_lane(box: todoku.App) -> None:
    """R7, R2"""
    fulfil = declare(box)
    with working(box):
        runs = start(fulfil, 1, 2)
        for number, run in enumerate(runs, 1):
            until(lambda: calls[-1:] == [("charge", number)], what="the run")  # noqa: B023 - called at once
            box.signal(run, "approval", True, tx=None)
            assert run.result(timeout=60) == number
    assert calls == by_order(1, 2)


def test_a_run_that_restarts_queues_behind_the_runs_of_its_key(box: todoku.App) -> None:
    """R7, R14: it has the same key, and was started last."""

    @box.workflow(ordered=True, hold_lane=True)
    async def fulfil(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order)
        if order == 1:
            await ctx.restart(11)

    for order in (1, 2):
        fulfil.using(key="customer").start(order)
    box.drain()
    assert calls == [("charge", 1), ("charge", 2), ("charge", 11)]


# ------------------------------------------------------------------------------------------ dead letters


def test_a_dead_letter_parks_the_lane_and_its_undo_is_not_held_up_by_it(box: todoku.App) -> None:
    """R7, R5: its undo has begun, so it is not replayed; removing it lets the others go."""
    fulfil = declare(box)
    first, second = start(fulfil, 1, 2)
    box.drain()
    approve(box, first, answer=False)
    assert first.delivery().reason == "REFUSED"
    assert calls == [("charge", 1), ("refund", 1)]
    assert explained(box, second) == [
        ("lane_parked", f"its lane is parked by the dead letter {first.delivery().id} (REFUSED)")
    ]
    assert box.deliveries.replay(first.delivery().id, by="ops", why="try").replayed == 0
    box.deliveries.purge(first.delivery().id, by="ops", why="it is undone")
    box.drain()
    assert calls == [("charge", 1), ("refund", 1), ("charge", 2)]


def test_with_on_dead_skip_the_next_run_goes_on(box: todoku.App) -> None:
    """R7"""
    fulfil = declare(box, on_dead="skip")
    first, _ = start(fulfil, 1, 2)
    box.drain()
    approve(box, first, answer=False)
    assert sorted(calls) == [("charge", 1), ("charge", 2), ("refund", 1)]


def test_a_run_that_is_cancelled_while_it_waits_lets_the_next_one_go_and_is_undone_beside_it(box: todoku.App) -> None:
    """R7, R5: the undo is a run of its own, and in no lane."""
    fulfil = declare(box)
    first, second = start(fulfil, 1, 2)
    box.drain()
    assert first.cancel(by="ops", why="changed her mind")
    box.drain()
    assert sorted(calls) == [("charge", 1), ("charge", 2), ("refund", 1)]
    approve(box, second)
    assert second.result() == 2


# --------------------------------------------------------------------------------------------- for people


def test_explain_and_verify_know_a_run_that_holds_its_lane(box: todoku.App) -> None:
    """R7"""
    fulfil = declare(box)
    first, second = start(fulfil, 1, 2)
    box.drain()
    assert explained(box, first) == [("waiting_for_signal", "it is waiting for the signal approval")]
    behind = f"delivery {first.delivery().id} is before it in its lane (pending)"
    assert explained(box, second) == [("lane_behind", behind)]
    assert broken(box) == {}
