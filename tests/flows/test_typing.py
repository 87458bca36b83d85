"""What a type checker says of workflows: a step is typed by its function's own signature."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transactions.test_typing import checked

CORRECT = """
from typing import assert_type
import todoku

box = todoku.App("sqlite:///shop.db")

async def charge(order_id: int) -> dict[str, int]:
    return {"paid": order_id}

def ship(order_id: int, fast: bool = False) -> str:
    return "parcel"

def refund(payment: dict[str, int] | None) -> None: ...

def book(tx: object, number: int) -> int:
    return number

@box.job
async def pick(sku: int) -> bytes:
    return b"part"

@box.workflow(queue="orders")
async def fulfil(ctx: todoku.Flow, order_id: int) -> str:
    assert_type(await ctx.step(charge, order_id, undo=refund), dict[str, int])
    assert_type(await ctx.step(ship, order_id), str)
    assert_type(await ctx.step(ship, order_id, True, max_attempts=3), str)
    assert_type(await ctx.step(book, 5, transactional=True), int)
    assert_type(await ctx.wait("approval", int, timeout=60), int)
    assert_type(await ctx.gather(pick.call(1), pick.call(2)), list[bytes])
    assert_type(await ctx.race(pick.call(1)), bytes)
    return "done"

@box.workflow
def plain(ctx: todoku.BlockingFlow, order_id: int) -> str:
    assert_type(ctx.step(charge, order_id, undo=refund), dict[str, int])
    assert_type(ctx.step(ship, order_id, True, max_attempts=3), str)
    assert_type(ctx.step(ship, order_id, run="process", timeout=60), str)
    assert_type(ctx.step(book, 5, transactional=True), int)
    assert_type(ctx.wait("approval", int, timeout=60), int)
    assert_type(ctx.gather(pick.call(1), pick.call(2)), list[bytes])
    assert_type(ctx.race(pick.call(1)), bytes)
    assert_type(ctx.version("new"), bool)
    ctx.sleep(hours=1)
    ctx.publish("order.fulfilled", {"id": order_id})
    return "done"

@box.workflow(queue="orders")
def queued(ctx: todoku.BlockingFlow, order_id: int) -> str:
    ctx.restart(order_id)

assert_type(plain.start(7), todoku.Handle[str])
assert_type(queued.start(7).result(), str)

run = fulfil.using(idempotency_key="a").start(7)
assert_type(run, todoku.Handle[str])
assert_type(run.result(), str)
box.signal(run.id, "approval", 1, tx=None)
box.signal(fulfil.run(idempotency_key="a"), "approval", 1, tx=None)

async def begin() -> None:
    assert_type(await fulfil.astart(7), todoku.Handle[str])
    await box.asignal(run, "approval", 1, tx=None)
"""

WRONG = """
import todoku

box = todoku.App("sqlite:///shop.db")

async def charge(order_id: int) -> int:
    return order_id

@box.workflow
async def fulfil(ctx: todoku.Flow, order_id: int) -> None:
    await ctx.step(charge, "seven")  # wrong: its argument is a number
    await ctx.step(charge)  # wrong: its argument is missing
    await ctx.step(charge, 1, 2)  # wrong: it takes one argument
    await ctx.sleep(hours="one")  # wrong: a number
    await ctx.gather(charge(1))  # wrong: no call of a job

    await ctx.step(charge, 1, run="process")  # wrong: it is async

@box.workflow
def plain(ctx: todoku.BlockingFlow, order_id: int) -> None:
    ctx.step(charge, "seven")  # wrong: its argument is a number
    ctx.step(charge)  # wrong: its argument is missing
    ctx.sleep(hours="one")  # wrong: a number
    ctx.wait("approval", kind=3)  # wrong: a type

@box.workflow  # wrong: its context is that of an async function
def mixed(ctx: todoku.Flow, order_id: int) -> None: ...

plain.start("seven")  # wrong: its argument is a number
fulfil.start("seven")  # wrong: its argument is a number
fulfil.start()  # wrong: its argument is missing
box.signal(fulfil.start(7), "approval", 1)  # wrong: tx is missing
box.signal(7, "approval", tx=None)  # wrong: no run
fulfil.run("a")  # wrong: which key?
"""


@pytest.mark.slow
@pytest.mark.xdist_group("mypy")
def test_a_correct_workflow_passes_and_each_mistake_is_found(tmp_path: Path, mypy_cache: Path) -> None:
    found = checked(tmp_path, mypy_cache, correct_flow=CORRECT, wrong_flow=WRONG)
    assert found["correct_flow"] == set()
    marked = {number for number, line in enumerate(WRONG.splitlines(), 1) if "# wrong:" in line}
    assert found["wrong_flow"] == marked
