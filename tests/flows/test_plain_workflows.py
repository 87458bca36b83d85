"""Workflows that are plain functions: the same runs, in a thread that blocks (R3, R6, R8, R9)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

import todoku
from tests.flows.conftest import Clock
from tests.flows.running import threads, working
from tests.flows.test_runs import Approval, calls, charge, refund, settled, ship, steps
from tests.support.pack import until
from todoku.core.errors import InvalidMessage, InvalidSetting, JobAborted
from todoku.engine.flows.run import RunStopped
from todoku.testing import crash, lose_lease


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture
def blocked() -> Any:
    """An event for which a function blocks, outside of its steps. It is set when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def test_every_call_of_ctx_works_in_a_plain_workflow(box: todoku.App, clock: Clock) -> None:
    published: list[Any] = []

    @box.on("order.fulfilled")
    def note(event: dict[str, int]) -> None:
        published.append(event)

    @box.job
    def pick(number: int) -> int:
        return number * number

    @box.workflow
    def fulfil(ctx: todoku.BlockingFlow, order: int) -> list[Any]:
        payment = ctx.step(charge, order, undo=refund)
        parcel = ctx.step(ship, order, max_attempts=2)
        values = (ctx.now(), ctx.random(), ctx.uuid(), ctx.version("new"))
        ctx.sleep(hours=1)
        answer = ctx.wait("approval", Approval)
        parts = ctx.gather(pick.call(2), pick.call(3))
        first = ctx.race(pick.call(4))
        ctx.publish("order.fulfilled", {"id": order})
        assert isinstance(values[0], datetime)
        assert isinstance(values[2], UUID)
        assert (values[3], ctx.attempt, ctx.cancelled()) == (True, 1, False)
        return [payment, parcel, str(values), answer.by, parts, first]

    run = fulfil.start(7)
    box.drain()
    assert (run.status(), calls) == ("pending", [("charge", 7), ("ship", 7)])
    clock.forward(3601)
    box.drain()
    box.signal(run, "approval", Approval(by="ops"), tx=None)
    box.drain()
    payment, parcel, _, by, parts, first = run.result(timeout=0)
    assert (payment, parcel, by, parts, first) == ({"paid": 70}, "parcel 7", "ops", [4, 9], 16)
    assert (calls, published) == ([("charge", 7), ("ship", 7)], [{"id": 7}])
    assert box.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}


def test_a_run_begun_by_an_async_function_goes_on_in_a_plain_one(url: str) -> None:
    """Keys, rows and meaning of steps are the same."""
    before = todoku.App(url)
    before.migrate()

    @before.workflow("fulfil")
    async def old(ctx: todoku.Flow, order: int) -> str:
        await ctx.step(charge, order)
        await ctx.wait("approval", str)
        raise AssertionError

    after = todoku.App(url)

    @after.workflow("fulfil")
    def new(ctx: todoku.BlockingFlow, order: int) -> str:
        payment = ctx.step(charge, order)
        return f"{payment['paid']} {ctx.wait('approval', str)} {ctx.step(ship, order)}"

    run = old.start(7)
    before.drain()
    before.signal(run, "approval", "ops", tx=None)
    after.drain()
    assert new.handle(run.id).result(timeout=0) == "70 ops parcel 7"
    assert calls == [("charge", 7), ("ship", 7)]
    before.close()
    after.close()


def test_a_run_that_parks_holds_no_thread_and_its_finally_blocks_run(box: todoku.App) -> None:
    """RunStopped is no Exception: a handler of errors does not take it for one."""
    seen: list[str] = []

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> str:
        try:
            return ctx.wait("word", str)
        except Exception:
            seen.append("an error")
            raise
        finally:
            seen.append("finally")

    before = threads("workflow")
    runs = [flow.start() for _ in range(5)]
    with working(box):
        until(lambda: len(seen) == 5, "five runs to park")
        until(lambda: threads("workflow") == before, "their threads to end")
        for run in runs:
            box.signal(run, "word", "yes", tx=None)
        assert [run.result(timeout=60) for run in runs] == ["yes"] * 5
    assert seen == ["finally"] * 10


def test_a_function_that_swallows_the_stop_changes_nothing_more(box: todoku.App) -> None:
    """Each further call of ctx raises before anything happens, and the run parks as it should."""
    refused: list[str] = []

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> str:
        try:
            return ctx.wait("word", str)
        except BaseException:
            for call in (lambda: ctx.step(charge, 1), lambda: ctx.publish("topic", 1), lambda: ctx.sleep(60)):
                try:
                    call()
                except BaseException as error:
                    refused.append(type(error).__name__)
        return "went on"

    run = flow.start()
    box.drain()
    assert (run.status(), calls, refused) == ("pending", [], ["RunStopped"] * 3)
    assert steps(box, run) == {"wait": "open"}
    box.signal(run, "word", "yes", tx=None)
    box.drain()
    assert run.result(timeout=0) == "yes"


def test_a_function_that_blocks_outside_of_its_steps_is_abandoned_at_its_timeout(
    box: todoku.App, blocked: threading.Event
) -> None:
    """As the thread of a plain job: the slot goes on with other work, and the thread can write no more (I3)."""
    ended: list[Any] = []

    @box.workflow(timeout=0.3, max_attempts=1)
    def stuck(ctx: todoku.BlockingFlow) -> None:
        ctx.step(charge, 1)
        blocked.wait(60)
        try:
            ctx.step(ship, 1)
        except BaseException as error:
            ended.append(type(error))

    @box.workflow
    def quick(ctx: todoku.BlockingFlow) -> str:
        return ctx.step(ship, 2)

    with working(box):
        runs = [stuck.start() for _ in range(4)]  # more than there are slots
        other = quick.start()
        assert other.result(timeout=60) == "parcel 2"
        until(lambda: all(run.status() == "aborted" for run in runs), "the stuck runs to end")
        delivery = runs[0].delivery()
        assert (delivery.reason, delivery.error) == ("TIMEOUT", "stuck did not end within 0.3 s")
        (attempt, *_) = runs[0].attempts()
        assert "blocked.wait(60)" in (attempt.traceback or "")
        blocked.set()
        until(lambda: len(ended) == 4, "the abandoned threads to go on")
    assert ended == [RunStopped] * 4
    assert ("ship", 1) not in calls


def test_a_run_that_is_cancelled_ends_at_its_next_call(box: todoku.App, blocked: threading.Event) -> None:
    """R8, R5"""
    begun = threading.Event()

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> None:
        ctx.step(charge, 1, undo=refund)
        begun.set()
        while not ctx.cancelled() and not blocked.wait(0.01):
            pass
        ctx.step(ship, 1)

    run = flow.start()
    with working(box):
        assert begun.wait(60)
        assert run.cancel(by="ops", why="a test")
        until(lambda: ("refund", {"paid": 10}) in calls, "its steps to be undone")
    assert (run.status(), run.delivery().reason) == ("aborted", "CANCELLED")
    assert ("ship", 1) not in calls


def test_a_worker_that_drains_gives_the_run_back_at_its_next_call(box: todoku.App, blocked: threading.Event) -> None:
    """R8: the attempt is not counted."""
    begun = threading.Event()

    @box.workflow(max_attempts=1)
    def flow(ctx: todoku.BlockingFlow) -> str:
        if not begun.is_set():
            begun.set()
            blocked.wait(60)
        return ctx.step(ship, 1)

    run = flow.start()
    with working(box) as worker:
        assert begun.wait(60)
        worker.drain()
        blocked.set()
    assert (run.status(), run.delivery().attempts, calls) == ("pending", 0, [])
    box.drain()
    assert run.result(timeout=0) == "parcel 1"


@pytest.mark.settings(lease_sec="3")
def test_a_run_whose_lease_is_lost_is_stopped_and_writes_nothing(box: todoku.App, blocked: threading.Event) -> None:
    """R3, I3: the row of the step is fenced, and the call raises no Exception."""
    begun, seen = threading.Event(), list[str]()

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> str:
        first = not begun.is_set()
        begun.set()
        try:
            if first:
                blocked.wait(60)
            return ctx.step(ship, 1)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    run = flow.start()
    with working(box):
        assert begun.wait(60)
        lose_lease(box)
        blocked.set()
        assert run.result(timeout=60) == "parcel 1"
    assert seen == ["RunStopped"]


@pytest.mark.parametrize("at", ["step.before_commit", "step.after_commit", "settle.before_commit"])
def test_a_worker_is_killed_in_the_middle_of_a_plain_workflow(box: todoku.App, at: str, clock: Clock) -> None:
    """R3: what is stored is not called again."""

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> str:
        number = ctx.random()
        ctx.sleep(60)
        return f"{number == ctx.random()} {ctx.step(ship, 1)}"

    run = flow.start()
    crash(box, at=at)
    lose_lease(box)
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == "False parcel 1"
    assert (calls, box.store.broken(history_ttl=1e9, ledger_ttl=1e9)) == ([("ship", 1)], {})


def test_failures_count_and_are_caught_as_in_an_async_workflow(box: todoku.App) -> None:
    """R6, R12"""

    def flaky() -> str:
        calls.append("flaky")
        if len(calls) < 3:
            raise ConnectionError("not now")
        return "at last"

    @box.job
    def doomed() -> None:
        raise todoku.Abort("NO")

    @box.workflow(max_attempts=3, backoff=todoku.table(0))
    def flow(ctx: todoku.BlockingFlow) -> str:
        word = ctx.step(flaky)
        with pytest.raises(todoku.StepFailed, match="ConnectionError"):
            ctx.step(failing, max_attempts=1)
        with pytest.raises(JobAborted):
            ctx.gather(doomed.call())
        return word

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "at last"


def failing() -> None:
    raise ConnectionError("never")


def test_a_run_that_gives_up_or_restarts_does_so_in_a_plain_function_too(box: todoku.App) -> None:
    """R4, R5, R14"""

    @box.workflow
    def gives_up(ctx: todoku.BlockingFlow) -> None:
        ctx.step(charge, 1, undo=refund)
        raise todoku.Abort("OUT_OF_STOCK")

    @box.workflow
    def poll(ctx: todoku.BlockingFlow, left: int) -> None:
        calls.append(left)
        if left:
            ctx.restart(left - 1)

    run = gives_up.start()
    assert settled(box, run) == ("aborted", "OUT_OF_STOCK")
    assert calls == [("charge", 1), ("refund", {"paid": 10})]
    calls.clear()
    poll.start(2)
    box.drain()
    assert calls == [2, 1, 0]


def test_another_thread_may_not_call_ctx(box: todoku.App) -> None:
    """R9: which of two calls comes first would be chance."""
    said: list[str] = []

    @box.workflow
    def flow(ctx: todoku.BlockingFlow) -> None:
        def branch() -> None:
            with pytest.raises(InvalidMessage, match=r"outside of the thread.*ctx.gather") as error:
                ctx.step(charge, 1)
            said.append(str(error.value))

        thread = threading.Thread(target=branch)
        thread.start()
        thread.join()

    run = flow.start()
    box.drain()
    assert (run.status(), len(said), calls) == ("succeeded", 1, [])


@pytest.mark.parametrize("is_async", [True, False])
def test_a_context_of_the_other_kind_is_refused_with_the_right_one(box: todoku.App, is_async: bool) -> None:
    async def awaits(ctx: todoku.BlockingFlow) -> None: ...

    def blocks(ctx: todoku.Flow) -> None: ...

    function: Callable[..., Any] = awaits if is_async else blocks
    with pytest.raises(InvalidSetting, match="todoku.Flow, and await" if is_async else "todoku.BlockingFlow"):
        box.workflow(function)


def test_plain_steps_that_block_do_not_hold_up_other_runs(box: todoku.App, blocked: threading.Event) -> None:
    """Neither what they read and write, nor the lease: more block than asyncio has threads."""
    begun: list[int] = []

    def block(number: int) -> int:
        begun.append(number)
        blocked.wait(60)
        return number

    @box.workflow
    async def slow(ctx: todoku.Flow) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(block, number) for number in range(40))))

    @box.workflow
    async def quick(ctx: todoku.Flow) -> str:
        word = await ctx.wait("word", str)
        await ctx.publish("topic", word)
        await ctx.sleep(0.05)
        return word + (await ctx.uuid()).hex[:0]

    @box.on("topic")
    async def note(word: str) -> None:
        calls.append(word)

    with working(box):
        run = slow.start()
        until(lambda: len(begun) >= 6, "steps to block")
        other = quick.start()
        box.signal(other, "word", "yes", tx=None)
        assert other.result(timeout=30) == "yes"
        until(lambda: len(begun) >= 8, "as many steps as there are threads")
        assert len(begun) == 8
        blocked.set()
        assert run.result(timeout=60) == list(range(40))
    assert calls == ["yes"]
