"""Once without a transaction of the caller's: a key is held while somebody works, and the others are told so."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import todoku
from tests.support.world import World
from todoku.core.errors import BlockingCall


def test_while_somebody_works_the_others_are_told_and_afterwards_they_have_the_response(box: todoku.App) -> None:
    with box.once("k", scope="s", tx=None, body=1) as done:
        assert done.first
        with (
            pytest.raises(todoku.InProgress, match="another caller is processing key 'k'"),
            box.once("k", scope="s", tx=None, body=1),
        ):
            raise AssertionError("nobody gets in")
        with pytest.raises(todoku.IdempotencyConflict), box.once("k", scope="s", tx=None, body=2):
            raise AssertionError("nobody gets in")
        done.store({"n": 1})
    with box.once("k", scope="s", tx=None, body=1) as again:
        assert (again.first, again.response) == (False, {"n": 1})


def test_a_key_is_free_again_if_the_work_raises(box: todoku.App) -> None:
    with pytest.raises(ZeroDivisionError), box.once("k", scope="s", tx=None):
        raise ZeroDivisionError
    with box.once("k", scope="s", tx=None) as done:
        assert done.first


def test_a_key_held_for_too_long_is_free_and_its_late_holder_changes_nothing(box: todoku.App, world: World) -> None:
    late = box.ledger.once("k", scope="s", tx=None, hold=30)
    late.__enter__().store("late")
    world.advance(31)
    with box.once("k", scope="s", tx=None) as done:
        done.store("mine")
    with pytest.raises(todoku.InProgress, match="was reserved for 30"):
        late.__exit__(None, None, None)
    assert box.ledger.entry("k", scope="s").response == '"mine"'  # type: ignore[union-attr]


def test_of_sixteen_at_once_one_does_it(box: todoku.App) -> None:
    ready, did, told = threading.Barrier(16), [], []

    def work(_: int) -> None:
        ready.wait()
        try:
            with box.once("k", scope="s", tx=None) as done:
                if done.first:
                    did.append(1)
                    done.store("done")
                else:
                    told.append(done.response)
        except todoku.InProgress:
            told.append("in progress")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(did) == 1
    assert len(told) == 15
    assert set(told) <= {"done", "in progress"}


async def test_async_code_awaits_it(box: todoku.App) -> None:
    async def work() -> Any:
        async with box.once("k", scope="s", tx=None) as done:
            await asyncio.sleep(0)
            if done.first:
                done.store([1])
            return done.response

    assert await work() == [1]
    assert await work() == [1]
    with pytest.raises(BlockingCall, match="async with"), box.once("k", scope="s", tx=None):
        raise AssertionError("a blocking call in an event loop")
