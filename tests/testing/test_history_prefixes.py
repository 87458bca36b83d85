"""Any part of any run, replayed by the same code, goes on, and calls nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import todoku
from todoku.testing import RunHistory, fresh, record_history, replay_history, skip_sleeps

LEAVES = ("step", "undoable", "transactional", "sleep", "now", "random", "uuid", "version", "wait", "publish", "gather",
          "race", "twice")  # fmt: skip

shapes = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.tuples(st.sampled_from(("in turn", "at once")), st.lists(inner, min_size=1, max_size=4)),
    max_leaves=12,
)

calls: list[str] = []
box = todoku.App("sqlite:///histories.db")
box.route("shape.*", to=todoku.log())


def work(place: str) -> str:
    calls.append(place)
    return f"{place} done"


def take_back(result: str | None) -> None: ...


def write(tx: Any, place: str) -> str:
    return work(place)


@box.job
async def child(place: str) -> str:
    return work(place)


@box.workflow
async def flow(ctx: todoku.Flow, shape: Any) -> Any:
    return await act(ctx, shape, "0")


async def act(ctx: todoku.Flow, shape: Any, place: str, *, alone: bool = True) -> Any:  # noqa: C901 - a table
    """Does what the shape says. `alone`: no other branch runs at once, so that equal values and waits are its own."""
    if not isinstance(shape, str):
        how, parts = shape
        alone = alone and how == "in turn"
        branches = (act(ctx, part, f"{place}.{number}", alone=alone) for number, part in enumerate(parts))
        return list(await asyncio.gather(*branches)) if how == "at once" else [await each for each in branches]
    match shape:
        case "step":
            return await ctx.step(work, place)
        case "twice":
            return [await ctx.step(work, place) for _ in range(2)]
        case "undoable":
            return await ctx.step(work, f"{place} undoable", undo=take_back)
        case "transactional":
            return await ctx.step(write, place, transactional=True)
        case "sleep":
            return await ctx.sleep(60)
        case "version":
            return await ctx.step(work, f"{place} new") if await ctx.version(place) else None
        case "publish":
            return str(await ctx.publish("shape.seen", place))
        case "gather":
            return await ctx.gather(child.call(f"{place} a"), child.call(f"{place} b"))
        case "race":
            return await ctx.race(child.call(f"{place} c"))
        case value:
            drawn = await (ctx.wait("word", str) if value == "wait" else getattr(ctx, value)())
            return await ctx.step(work, f"{place} {drawn}") if alone else None


@pytest.fixture(scope="module")
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with fresh(box, f"sqlite:///{tmp_path_factory.mktemp('histories')}/histories.db"):
        yield


def finished(shape: Any) -> RunHistory:
    run = flow.start(shape)
    for number in range(12):
        box.signal(run, "word", f"word {number}", tx=None)
    with skip_sleeps(box):
        while run.status() == "pending":
            box.drain()
    calls.clear()
    return record_history(box, run)


@pytest.mark.slow
@pytest.mark.usefixtures("_database")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes)
def test_every_part_of_a_history_replays_by_the_same_code_and_calls_nothing(shape: Any) -> None:
    history = finished(shape)
    whole = replay_history(box, history)
    whole.check()
    assert (whole.same_end, whole.next, whole.unused) == (True, (), ())
    for length in range(len(history.steps)):
        part = msgspec.structs.replace(history, status="pending", result=None, steps=history.steps[:length])
        report = replay_history(box, part)
        report.check()
        assert report.unused == ()
        assert report.next or all(step.kind == "value" for step in history.steps[length:])
    assert calls == []
