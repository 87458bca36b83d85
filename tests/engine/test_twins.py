"""Twins: one implementation, a blocking form and an async form of it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

import todoku
from todoku.app import App
from todoku.client.queue import DeadLetterCalls, MessageCalls, Queue
from todoku.core.errors import BlockingCall
from todoku.engine.deliveries import Deliveries
from todoku.engine.jobs.handle import Handle
from todoku.engine.ledger import Ledger
from todoku.engine.queues import Queues
from todoku.engine.schedules import Schedules
from todoku.engine.twins import Signal, asynchronous, blocking, in_thread, off_loop

CLASSES: tuple[type, ...] = (
    App, todoku.Batch, todoku.Job, Handle, Ledger, Schedules, Deliveries, Queues, Queue, MessageCalls,
    DeadLetterCalls,
)  # fmt: skip


class Oven:
    """Something with one call in two forms."""

    name = "big oven"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def heat(self, degrees: int) -> int:
        self.seen.append(threading.current_thread().name)
        if degrees > 300:
            raise ValueError("too hot")
        return degrees

    @blocking("oven")
    async def bake(self, degrees: int, *, twice: bool = False) -> int:
        """Bakes at this heat.

        `twice`: and again.
        """
        try:
            first = await in_thread(self.heat, degrees)
        except ValueError:
            return await in_thread(self.heat, 300)
        await Signal().within(0.0)
        return first + (await in_thread(self.heat, degrees) if twice else 0)

    abake = asynchronous(bake)

    @blocking(lambda oven: oven.name)
    async def cool(self) -> None:
        """Cools."""
        await Signal().within(0.0)

    @blocking("oven")
    async def peek(self) -> str:
        """Looks inside, which takes no time."""
        return await off_loop(lambda: threading.current_thread().name)

    apeek = asynchronous(peek)


def test_both_forms_run_the_same_implementation() -> None:
    oven = Oven()
    assert oven.bake(200) == asyncio.run(oven.abake(200)) == 200
    assert oven.bake(200, twice=True) == asyncio.run(oven.abake(200, twice=True)) == 400


def test_an_error_of_a_step_reaches_the_implementation() -> None:
    oven = Oven()
    assert oven.bake(999) == asyncio.run(oven.abake(999)) == 300


def test_the_blocking_form_stays_in_its_thread_and_the_async_form_leaves_the_loop_free() -> None:
    oven, here = Oven(), threading.current_thread().name
    oven.bake(200)
    assert oven.seen == [here]
    asyncio.run(oven.abake(200))
    assert oven.seen[1] != here


def test_the_blocking_form_in_an_event_loop_names_the_other() -> None:
    oven = Oven()

    async def wrong(call: Callable[[], Any]) -> None:
        call()

    with pytest.raises(BlockingCall, match=r"await oven\.abake"):
        asyncio.run(wrong(lambda: oven.bake(200)))
    with pytest.raises(BlockingCall, match=r"await big oven\.acool"):
        asyncio.run(wrong(oven.cool))
    assert oven.seen == []
    asyncio.run(wrong(oven.peek))  # refuses nothing


def test_wrong_arguments_are_refused_at_the_call() -> None:
    oven: Any = Oven()
    for call in (oven.bake, oven.abake):
        with pytest.raises(TypeError, match="degrees"):
            call()


def test_what_a_cancelled_caller_waits_for_is_cancelled() -> None:
    ended: list[str] = []

    class Slow:
        @blocking("slow")
        async def nap(self) -> None:
            """Naps."""
            try:
                await Signal().within(60)
            finally:
                ended.append("ended")

        anap = asynchronous(nap)

    async def cancelled() -> None:
        task = asyncio.create_task(Slow().anap())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ended == ["ended"]


def test_both_forms_explain_themselves() -> None:
    assert (Oven.bake.__name__, Oven.abake.__name__) == ("bake", "abake")
    assert Oven.abake.__qualname__ == "Oven.abake"
    assert inspect.getdoc(Oven.bake) == "Bakes at this heat.\n\n`twice`: and again."
    assert inspect.getdoc(Oven.abake) == "Bakes at this heat (async).\n\n`twice`: and again."
    assert inspect.signature(Oven.bake) == inspect.signature(Oven.abake)
    assert str(inspect.signature(Oven().bake)) == "(degrees: 'int', *, twice: 'bool' = False) -> 'int'"
    assert not inspect.iscoroutinefunction(inspect.unwrap(Oven.bake))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_async_form_has_the_parameters_and_the_words_of_its_twin(kind: type) -> None:
    """`help(box.apublish)` says what `help(box.publish)` says."""
    names = [name for name in vars(kind) if name.startswith("a") and name[1:] in vars(kind)]
    assert names
    for name in names:
        call, twin = getattr(kind, name), getattr(kind, name[1:])
        assert (call.__name__, twin.__name__) == (name, name[1:])
        assert inspect.signature(call) == inspect.signature(twin)
        assert "(async)." in call.__doc__
        assert call.__doc__.replace(" (async).", ".", 1) == twin.__doc__
