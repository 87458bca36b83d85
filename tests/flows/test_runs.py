"""Runs of workflows, through their life: steps, sleeps, signals, children, failures (R1 to R14)."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

import todoku
from tests.flows.conftest import Clock
from todoku.core.errors import InvalidAct, InvalidMessage, InvalidSetting, JobAborted, NotThere
from todoku.engine.flows import operations
from todoku.engine.operations import sign
from todoku.testing import crash, lose_lease

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


class Approval(BaseModel):
    by: str


async def charge(order: int) -> dict[str, int]:
    calls.append(("charge", order))
    return {"paid": order * 10}


def ship(order: int) -> str:
    calls.append(("ship", order))
    return f"parcel {order}"


def refund(payment: dict[str, int] | None) -> None:
    calls.append(("refund", payment))


def unship(parcel: str | None) -> None:
    calls.append(("unship", parcel))


def steps(box: todoku.App, run: todoku.Handle[Any]) -> dict[str, str]:
    """The state of each step, by name."""
    standing = box.store.runs.standing(run.id)
    assert standing is not None
    return {row.name: row.state for row in box.store.runs.steps(standing.message_seq)}


def settled(box: todoku.App, run: todoku.Handle[Any]) -> tuple[str, str | None]:
    box.drain()
    return str(run.status()), (run.delivery().reason if run.status() == "aborted" else None)


# ------------------------------------------------------------------------------------------- steps and sleeps


def test_a_run_sleeps_without_a_worker_and_goes_on_where_it_stopped(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def fulfil(ctx: todoku.Flow, order: int) -> str:
        payment = await ctx.step(charge, order)
        await ctx.sleep(hours=1)
        parcel = await ctx.step(ship, order)
        return f"{payment['paid']} {parcel}"

    run = fulfil.start(7)
    box.drain()
    held = run.delivery()
    assert (held.status, held.attempts, held.worker) == ("pending", 0, None)
    clock.forward(3599)
    box.drain()
    assert calls == [("charge", 7)]
    clock.forward(2)
    box.drain()
    assert run.result(timeout=0) == "70 parcel 7"
    assert calls == [("charge", 7), ("ship", 7)]


def test_what_a_step_returns_is_the_same_before_and_after_a_wake_up(box: todoku.App, clock: Clock) -> None:
    seen: list[Any] = []

    def approve(by: str) -> Approval:
        return Approval(by=by)

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        seen.append((await ctx.step(approve, "ops"), await ctx.now(), await ctx.random(), await ctx.uuid()))
        await ctx.sleep(60)

    flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert isinstance(seen[0][0], Approval)
    assert isinstance(seen[0][1], datetime)
    assert isinstance(seen[0][3], UUID)


def test_steps_are_found_by_their_arguments_in_loops_and_in_concurrent_branches(box: todoku.App, clock: Clock) -> None:
    """R9: the order in which branches end does not matter."""

    async def slow(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        calls.append(number)
        return number * number

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[int]:
        squares = await asyncio.gather(*(ctx.step(slow, number) for number in range(3)))
        await ctx.sleep(60)
        for number in range(3):
            squares.append((await ctx.step(charge, number))["paid"])
        await ctx.sleep(60)
        return squares

    run = flow.start()
    for _ in range(3):
        box.drain()
        clock.forward(61)
    assert run.result(timeout=0) == [0, 1, 4, 0, 10, 20]
    assert calls == [2, 1, 0, ("charge", 0), ("charge", 1), ("charge", 2)]


def test_a_branch_that_sleeps_does_not_hold_up_another_that_works(box: todoku.App) -> None:
    """R9: a run parks only when no step is under way."""

    async def slow() -> str:
        await asyncio.sleep(0.3)
        calls.append("slow")
        return "done"

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        async def late() -> None:
            await ctx.sleep(0.1)
            calls.append("late")

        _, result = await asyncio.gather(late(), ctx.step(slow))
        return result

    run = flow.start()
    box.drain()
    assert run.result(timeout=5) == "done"
    assert calls == ["late", "slow"]


def test_two_equal_steps_at_once_need_a_key(box: todoku.App) -> None:
    """R9: otherwise which result belongs to which call would be chance."""

    async def slow() -> int:
        await asyncio.sleep(0.01)
        return len(calls)

    @box.workflow(max_attempts=1)
    async def unclear(ctx: todoku.Flow) -> None:
        await asyncio.gather(ctx.step(slow), ctx.step(slow))

    @box.workflow
    async def clear(ctx: todoku.Flow) -> list[int]:
        return list(await asyncio.gather(ctx.step(slow, key="a"), ctx.step(slow, key="b")))

    run, other = unclear.start(), clear.start()
    assert settled(box, run)[0] == "aborted"
    assert "key=" in str(run.error())
    assert other.result(timeout=0) == [0, 0]


def test_a_step_may_be_a_partial_and_its_arguments_are_checked(box: todoku.App) -> None:
    from functools import partial

    def add(left: int, right: int = 1) -> int:
        return left + right

    @box.workflow
    async def flow(ctx: todoku.Flow) -> int:
        with pytest.raises(InvalidMessage, match="left"):
            await ctx.step(add, "two")  # type: ignore[arg-type]
        return await ctx.step(partial(add, right=5), 2)

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == 7


def test_a_result_that_is_too_large_says_what_to_do(box: todoku.App) -> None:
    """R14"""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(lambda: "x" * 70_000)

    run = flow.start()
    assert settled(box, run)[0] == "aborted"
    assert "store it in a table" in str(run.error())


# ------------------------------------------------------------------------------------------- changed code


def test_a_changed_argument_stops_the_run_before_it_charges_twice(box: todoku.App, clock: Clock) -> None:
    """R1"""
    amounts = iter((1, 2))

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, next(amounts), undo=refund)
        await ctx.sleep(60)

    run = flow.start()
    box.drain()
    clock.forward(61)
    assert settled(box, run) == ("aborted", "STEP_CHANGED")
    assert calls == [("charge", 1)]  # neither again nor undone: a person decides
    assert '"order":1' in str(run.error())
    assert '"order":2' in str(run.error())


def test_on_change_run_goes_on(box: todoku.App, clock: Clock) -> None:
    amounts = iter((1, 2))

    @box.workflow(on_change="run")
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, next(amounts))
        await ctx.sleep(60)

    run = flow.start()
    box.drain()
    clock.forward(61)
    assert settled(box, run)[0] == "succeeded"
    assert calls == [("charge", 1), ("charge", 2)]


def test_a_new_step_between_two_others_is_harmless(box: todoku.App, clock: Clock) -> None:
    deployed = False

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1)
        if deployed:
            await ctx.step(ship, 1)
        await ctx.sleep(60)
        await ctx.step(charge, 2)

    run = flow.start()
    box.drain()
    deployed = True
    clock.forward(61)
    assert settled(box, run)[0] == "succeeded"
    assert calls == [("charge", 1), ("ship", 1), ("charge", 2)]


def test_a_version_is_taken_only_by_runs_that_come_there_after_the_change(box: todoku.App, clock: Clock) -> None:
    deployed = False

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        way = "old"
        if deployed and await ctx.version("v2"):
            way = "new"
        await ctx.step(charge, 1)
        await ctx.sleep(60)
        return way

    before = flow.start()
    box.drain()
    deployed = True
    after = flow.start()
    for _ in range(2):
        clock.forward(61)
        box.drain()
    assert (before.result(timeout=0), after.result(timeout=0)) == ("old", "new")


# ------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_reaches_its_wait_whether_it_comes_before_or_after(box: todoku.App, early: bool) -> None:
    """R2"""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return (await ctx.wait("approval", Approval)).by

    run = flow.start()
    if not early:
        box.drain()
        assert run.status() == "pending"
    box.signal(run.id, "approval", Approval(by="ops"), tx=None)
    box.drain()
    assert run.result(timeout=0) == "ops"


def test_each_signal_goes_to_one_wait_the_oldest_first(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[int]:
        first = await ctx.wait("number", int)
        await ctx.sleep(60)
        return [first, await ctx.wait("number", int), await ctx.wait("number", int)]

    run = flow.start()
    for number in (1, 2, 3):
        box.signal(run, "number", number, tx=None)
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == [1, 2, 3]


def test_a_wait_ends_when_its_time_is_over(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        try:
            await ctx.wait("approval", timeout=60)
        except TimeoutError:
            await ctx.sleep(60)
            return "late"
        return "in time"

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    box.signal(run, "approval", tx=None)  # too late for the wait that has ended
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == "late"


def test_a_signal_wakes_no_run_that_sleeps_or_has_not_begun(box: todoku.App, clock: Clock) -> None:
    """R2: only an open wait for this name is woken."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        calls.append("called")
        await ctx.sleep(60)
        return await ctx.wait("word", str)

    run, later = flow.start(), flow.using(delay=3600).start()
    box.drain()
    box.signal(run, "word", "yes", tx=None)
    box.signal(later, "word", "yes", tx=None)
    box.drain()
    assert calls == ["called"]
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == "yes"
    assert later.status() == "pending"


def test_a_signal_to_no_run_and_to_one_that_has_ended_is_refused(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> None: ...

    run = flow.start()
    box.drain()
    for id in (run.id, UUID(int=7)):
        with pytest.raises(NotThere):
            box.signal(id, "approval", tx=None)
    with pytest.raises(InvalidMessage):
        box.signal(run, "", tx=None)


# ------------------------------------------------------------------------------------------- children


def test_children_are_jobs_whose_results_come_back_in_order(box: todoku.App) -> None:
    """R11"""

    @box.job
    async def pick(number: int) -> Approval:
        calls.append(number)
        return Approval(by=str(number))

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[str]:
        parts = await ctx.gather(*(pick.call(number) for number in range(4)))
        return [part.by for part in parts]

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == ["0", "1", "2", "3"]
    assert sorted(calls) == [0, 1, 2, 3]
    assert box.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}


def test_a_child_that_is_given_up_raises_or_stands_in_the_list(box: todoku.App) -> None:
    @box.job
    async def pick(number: int) -> int:
        if number == 1:
            raise todoku.Abort("NOT_IN_STOCK")
        return number

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        some = await ctx.gather(pick.call(0), pick.call(1), return_exceptions=True)
        assert isinstance(some[1], JobAborted)
        try:
            await ctx.gather(pick.call(1), pick.call(2))
        except JobAborted as error:
            return f"{some[0]} {error.reason}"
        return "no error"

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "0 NOT_IN_STOCK"


def test_a_race_goes_on_with_the_first_success_and_cancels_the_others(box: todoku.App) -> None:
    @box.job
    async def fast() -> str:
        return "fast"

    @box.job
    async def never() -> str:
        raise AssertionError

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.race(never.using(delay=3600).call(), fast.call())

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "fast"
    (other,) = box.deliveries.find(status="aborted").items
    assert (other.destination, other.reason) == ("never", "CANCELLED")


def test_publishing_is_a_step_and_happens_once(box: todoku.App, clock: Clock) -> None:
    """R10"""

    @box.on("order.fulfilled")
    async def note(event: dict[str, int]) -> None:
        calls.append(event)

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        first = await ctx.publish("order.fulfilled", {"id": 7})
        await ctx.sleep(60)
        return str(first)

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.status() == "succeeded"
    assert calls == [{"id": 7}]


def test_a_run_that_restarts_ends_and_another_begins_once(box: todoku.App, clock: Clock) -> None:
    """R14"""

    @box.workflow(unique_for=3600, per_key=todoku.Limit(concurrency=1))
    async def poll(ctx: todoku.Flow, left: int) -> str:
        calls.append((left, ctx.claim.key, ctx.claim.priority))
        await ctx.sleep(60)
        if left == 0:
            return "the last"
        return await ctx.restart(left - 1)

    first = poll.using(key="tenant", priority=3).start(2)
    for _ in range(4):
        box.drain()
        clock.forward(61)
    assert first.result(timeout=0) is None
    assert calls == [(left, "tenant", 3) for left in (2, 2, 1, 1, 0, 0)]
    assert steps(box, first) == {"sleep": "open", "restart": "done"}
    assert box.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}


def test_a_run_whose_worker_dies_after_its_restart_begins_no_second_one(box: todoku.App) -> None:
    """R14: what counts is the stored step, also if the code would pass other arguments now."""

    @box.workflow
    async def poll(ctx: todoku.Flow, number: int) -> int:
        calls.append(number)
        if number == 0:
            await ctx.restart(ctx.claim.lost + 1)
        return number

    run = poll.start(0)
    crash(box, at="settle.before_commit")
    lose_lease(box)
    box.drain()
    assert run.result(timeout=0) is None
    assert sorted(calls) == [0, 1]


def test_a_run_that_is_cancelled_after_its_restart_undoes_nothing(box: todoku.App, clock: Clock) -> None:
    """R14: another run goes on with what it did, so nothing of it is undone; not on request either."""

    @box.workflow(max_attempts=1)
    async def poll(ctx: todoku.Flow, number: int) -> int:
        if number == 1:
            await ctx.sleep(60)  # so the process that crashes, whose calls are not seen here, never charges for it
        await ctx.step(charge, number, undo=refund)
        if number == 0:
            await ctx.restart(1)
        return number

    run = poll.start(0)
    crash(box, at="settle.before_commit")
    lose_lease(box)
    assert run.cancel(by="ops", why="changed her mind")
    box.drain()
    assert (run.status(), calls) == ("aborted", [])
    clock.forward(61)
    box.drain()
    assert calls == [("charge", 1)]
    with pytest.raises(InvalidAct, match="another run goes on"):
        operations.undo(box.store, run.id, sign("ops", "by hand"))


def test_a_run_that_has_restarted_is_not_rewound_and_a_replay_ends_it(box: todoku.App) -> None:
    """R12, R14: a second restart would begin a second run; with other arguments it could not even be published."""

    @box.workflow
    async def poll(ctx: todoku.Flow, number: int) -> int:
        calls.append(number)
        if number == 0:
            await ctx.restart(ctx.claim.replay_count + 1)
        return number

    run = poll.start(0)
    crash(box, at="settle.before_commit")
    lose_lease(box)
    assert run.cancel(by="ops", why="a trial")
    with pytest.raises(InvalidAct, match="another run goes on"):
        operations.rewind(box.store, run.id, sign("ops", "once more"), to="restart")
    assert run.replay(by="ops", why="let it end")
    box.drain()
    assert sorted(calls) == [0, 1]
    assert run.status() == "succeeded"


# ------------------------------------------------------------------------------------------- failures


def test_a_step_that_fails_is_tried_again_with_the_run_and_progress_counts_anew(box: todoku.App) -> None:
    """R6: attempts count failures without progress."""

    def flaky(number: int) -> int:
        calls.append(number)
        if calls.count(number) < 3:
            raise ConnectionError("not now")
        return number

    @box.workflow(max_attempts=3, backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> int:
        return sum([await ctx.step(flaky, number) for number in range(4)])

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == 6
    assert calls == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_step_with_attempts_of_its_own_waits_parked_between_them(box: todoku.App, clock: Clock) -> None:
    def flaky() -> str:
        calls.append("flaky")
        if len(calls) < 3:
            raise ConnectionError("not now")
        return "at last"

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(flaky, max_attempts=3, backoff=todoku.table(60))

    run = flow.start()
    for number in (1, 2):
        box.drain()
        assert (run.status(), len(calls)) == ("pending", number)
        clock.forward(70)
    box.drain()
    assert run.result(timeout=0) == "at last"


def test_a_step_without_attempts_left_fails_the_run_and_a_replay_tries_it_again(box: todoku.App) -> None:
    """R12: replay keeps what is done, and reopens only the step that ended the run."""
    mended = False

    def broken() -> str:
        calls.append("broken")
        if not mended:
            raise ConnectionError("no")
        return "fine"

    def handled() -> None:
        calls.append("handled")
        raise ConnectionError("caught")

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        await ctx.step(charge, 1, undo=refund)
        with pytest.raises(todoku.StepFailed):
            await ctx.step(handled, max_attempts=1)
        return await ctx.step(broken, max_attempts=2, backoff=todoku.table(0))

    run = flow.start()
    assert settled(box, run) == ("aborted", "STEP_FAILED")
    assert calls == [("charge", 1), "handled", "broken", "broken"]
    mended = True
    run.replay(by="ops", why="mended")
    box.drain()
    assert run.result(timeout=0) == "fine"
    assert calls == [("charge", 1), "handled", "broken", "broken", "broken"]


def test_a_transactional_step_commits_its_effect_with_its_result(box: todoku.App, clock: Clock) -> None:
    """R10, I6"""
    with box.store.database.open_transaction(5) as made:
        made.connection.execute("create table book (number int)")
        made.check()
        made.commit()

    def book(tx: Any, number: int) -> int:
        tx.execute(f"insert into book values ({number})")
        calls.append(number)
        if len(calls) == 1:
            raise ConnectionError("rolled back")
        return number

    @box.workflow(backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> int:
        number = await ctx.step(book, 5, transactional=True)
        await ctx.sleep(60)
        return number

    run = flow.start()
    box.drain()
    clock.forward(61)
    box.drain()
    assert run.result(timeout=0) == 5
    assert calls == [5, 5]
    with box.store.database.open_transaction(5) as read:
        assert [tuple(row) for row in read.connection.execute("select number from book").fetchall()] == [(5,)]


# ------------------------------------------------------------------------------------------- undo


def test_a_run_that_gives_up_undoes_its_steps_in_reverse(box: todoku.App) -> None:
    """R4, R5"""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=refund)
        await ctx.step(ship, 1, undo=unship)
        raise todoku.Abort("OUT_OF_STOCK")

    run = flow.start()
    box.drain()
    assert calls == [("charge", 1), ("ship", 1), ("unship", "parcel 1"), ("refund", {"paid": 10})]
    assert steps(box, run) == {"charge": "undone", "ship": "undone", "undo": "undone"}


def test_a_step_whose_result_is_not_known_is_undone_too(box: todoku.App) -> None:
    """R4: the call may have reached the other side."""

    def pay(order: int) -> dict[str, int]:
        calls.append(("pay", order))
        raise todoku.Abort("NO_ANSWER")

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(pay, 1, undo=refund)

    flow.start()
    box.drain()
    assert calls == [("pay", 1), ("refund", None)]


@pytest.mark.parametrize("undo", ["auto", "always"])
def test_a_run_without_attempts_left_is_undone_only_if_it_says_so(box: todoku.App, undo: Any) -> None:
    """R5: a person may still mend it."""

    @box.workflow(max_attempts=1, undo=undo)
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=refund)
        raise ConnectionError

    flow.start()
    box.drain()
    assert calls == [("charge", 1), ("refund", {"paid": 10})][: 1 + (undo == "always")]


def test_cancelling_a_run_cancels_its_children_and_undoes_its_steps(box: todoku.App) -> None:
    """R5, R8"""

    @box.job
    async def pick() -> None: ...

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=refund)
        await ctx.gather(pick.using(delay=3600).call())

    run = flow.start()
    box.drain()
    assert run.cancel(by="ops", why="changed her mind")
    box.drain()
    assert calls == [("charge", 1), ("refund", {"paid": 10})]
    assert {each.destination: each.reason for each in box.deliveries.find(status="aborted").items} == {
        "flow": "CANCELLED", "pick": "CANCELLED",
    }  # fmt: skip


def test_an_undo_that_fails_is_tried_again_and_visible(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(ship, 1, undo=unship)
        await ctx.step(charge, 1, undo=refund_at_the_second_try)
        raise todoku.Abort("NO")

    flow.start()
    box.drain()
    (waiting,) = box.deliveries.find(status="failed").items
    assert (waiting.destination, waiting.attempts) == ("flow.undo", 1)
    clock.forward(3600)
    box.drain()
    assert calls == [("ship", 1), ("charge", 1), "not now", ("refund", {"paid": 10}), ("unship", "parcel 1")]


def test_an_undo_that_was_interrupted_goes_on_with_steps_of_the_same_function(box: todoku.App, clock: Clock) -> None:
    """R4: what its first attempt undid is no step of the second one, and no change of the code."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=refund_at_the_second_try)
        await ctx.step(charge, 2, undo=refund)
        raise todoku.Abort("NO")

    run = flow.start()
    box.drain()
    assert calls == [("charge", 1), ("charge", 2), ("refund", {"paid": 20}), "not now"]
    clock.forward(3600)
    box.drain()
    assert calls[4:] == [("refund", {"paid": 10})]
    assert steps(box, run) == {"charge": "undone", "undo": "undone"}


def refund_at_the_second_try(payment: dict[str, int] | None) -> None:
    if "not now" not in calls:
        calls.append("not now")
        raise ConnectionError
    refund(payment)


# ------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize("options", [{"transactional": True}, {"run": "process"}, {"undo": "never"}])
def test_options_that_no_workflow_has_are_refused(box: todoku.App, options: Any) -> None:
    with pytest.raises(InvalidSetting):

        @box.workflow(**options)
        async def flow(ctx: todoku.Flow) -> None: ...


def test_a_workflow_is_async_and_an_undo_can_be_found_by_name(box: todoku.App) -> None:
    with pytest.raises(InvalidSetting, match="async def"):

        @box.workflow  # type: ignore[arg-type]
        def flow(ctx: todoku.Flow) -> None: ...

    @box.workflow
    async def other(ctx: todoku.Flow) -> None:
        await ctx.step(charge, 1, undo=lambda payment: None)

    run = other.start()
    assert settled(box, run)[0] == "aborted"
    assert "by its name" in str(run.error())
    assert calls == []


def test_publishing_something_else_at_the_same_place_stops_the_run(box: todoku.App, clock: Clock) -> None:
    """R1: a payload with the time in it would be published at every wake-up."""
    numbers = iter((1, 2))

    @box.on("order.fulfilled")
    async def note(event: int) -> None:
        calls.append(event)

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.publish("order.fulfilled", next(numbers))
        await ctx.sleep(60)

    run = flow.start()
    box.drain()
    clock.forward(61)
    assert settled(box, run) == ("aborted", "STEP_CHANGED")
    assert calls == [1]


def test_a_parked_run_is_no_suspect_whatever_happened_to_its_workers(box: todoku.App, clock: Clock) -> None:
    """R6: three deploys that kill their workers in a month do not abort a healthy run."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        for _ in range(5):
            await ctx.sleep(60)

    run = flow.start()
    for _ in range(5):
        box.drain()
        lose(box)
        clock.forward(61)
    box.drain()
    assert run.status() == "succeeded"


def lose(box: todoku.App) -> None:
    """Counts a worker that died under each run."""
    with box.store.database.open_transaction(5) as opened:
        opened.connection.execute("update todoku_delivery set lost = lost + 1")
        opened.check()
        opened.commit()


def test_a_run_that_cannot_be_stored_does_not_fail_a_best_effort_caller(box: todoku.App, clock: Clock) -> None:
    """S3-72: `start` has the options of `enqueue`."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None: ...

    with box.store.database.open_transaction(5) as opened:
        opened.connection.execute("alter table todoku_message rename to todoku_away")
        opened.check()
        opened.commit()
    assert not flow.using(best_effort=True).start().stored
