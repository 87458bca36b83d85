"""The testing kit and workflows: crashes at a step, sleeps on a frozen clock, sleeps that are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

import todoku
from todoku.testing import crash, frozen, lose_lease, skip_sleeps


@pytest.fixture
def box(tmp_path: Path) -> todoku.App:
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    box.migrate()
    return box


@pytest.mark.parametrize(("at", "times"), [("step.before_commit", 2), ("step.after_commit", 1)])
def test_a_crash_at_a_step_repeats_it_unless_its_result_was_stored(
    box: todoku.App, tmp_path: Path, at: str, times: int
) -> None:
    def charge() -> str:
        with (tmp_path / "charged").open("a") as file:
            file.write("charged\n")
        return "paid"

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(charge)

    run = flow.start()
    crash(box, at=at)
    lose_lease(box)
    box.drain()
    assert run.result(timeout=0) == "paid"
    assert (tmp_path / "charged").read_text() == "charged\n" * times


def test_a_frozen_clock_moves_the_sleeps_of_runs(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        await ctx.sleep(hours=1)
        return "awake"

    with frozen(box) as clock:
        run = flow.start()
        box.drain()
        clock.tick(3590)
        assert box.drain() == 0
        clock.tick(20)
        box.drain()
        assert run.result(timeout=0) == "awake"


def test_skipped_sleeps_do_not_wait_and_others_do(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        await ctx.sleep(days=30)
        await ctx.sleep(days=30)
        return "awake"

    run = flow.start()
    with skip_sleeps(box):
        box.drain()
    assert run.result(timeout=0) == "awake"
    later = flow.start()
    box.drain()
    assert later.status() == "pending"
