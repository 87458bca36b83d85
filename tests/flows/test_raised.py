"""What is no Exception: it is one failed attempt, and the worker goes on."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import todoku


class Odd(BaseException):
    """As some libraries raise, so that `except Exception` lets it through."""


def raise_odd() -> None:
    raise Odd("odd")


async def raise_odd_async() -> None:
    raise Odd("odd")


async def leave() -> None:
    sys.exit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


def raise_odd_in(_tx: Any) -> None:
    raise Odd("odd")


@pytest.mark.parametrize("function", [raise_odd, raise_odd_async, leave, cancel_itself])
def test_a_step_that_raises_no_exception_has_failed(box: todoku.App, function: Any) -> None:
    @box.workflow(max_attempts=1)
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(function)

    run = fulfil.start()
    box.drain()
    assert run.status() == "aborted"
    assert "which is no Exception" in (run.error() or "") + (run.delivery().error or "")


def test_a_transactional_step_that_raises_no_exception_has_failed(box: todoku.App) -> None:
    @box.workflow(max_attempts=1)
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(raise_odd_in, transactional=True)

    run = fulfil.start()
    box.drain()
    assert run.status() == "aborted"


def test_attempts_of_a_step_count_what_is_no_exception(box: todoku.App) -> None:
    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> str:
        try:
            await ctx.step(raise_odd_async, max_attempts=1)
        except todoku.StepFailed as error:
            return str(error)
        return "not reached"

    run = fulfil.start()
    box.drain()
    assert "failed 1 times" in str(run.result())


@pytest.mark.parametrize("raised", [Odd("odd"), SystemExit(3), asyncio.CancelledError()])
def test_a_workflow_that_raises_no_exception_has_failed(box: todoku.App, raised: BaseException) -> None:
    @box.workflow(max_attempts=1)
    async def fulfil(_ctx: todoku.Flow) -> None:
        raise raised

    @box.workflow(max_attempts=1)
    def plain(_ctx: todoku.BlockingFlow) -> None:
        raise raised

    runs = fulfil.start(), plain.start()
    box.drain()
    assert [run.status() for run in runs] == ["aborted", "aborted"]
