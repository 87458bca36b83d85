"""Signals by the run's own key: to one run, never to two, and to none that has ended (R2)."""

from __future__ import annotations

from typing import Any

import pytest

import todoku
from tests.flows.conftest import Clock
from todoku.core.errors import InvalidAct, InvalidMessage, NotThere
from todoku.engine.flows import operations

MONTHS = 90 * 86_400.0


def approving(box: todoku.App, name: str = "approve", **options: Any) -> todoku.Workflow[[], str]:
    async def approve(ctx: todoku.Flow) -> str:
        return await ctx.wait("approval", str)

    return box.workflow(name, **options)(approve)


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_by_the_key_reaches_the_wait_whether_it_comes_before_or_after(box: todoku.App, early: bool) -> None:
    approve = approving(box)
    run, other = (approve.using(idempotency_key=f"order {number}").start() for number in (7, 8))
    if not early:
        box.drain()
    box.signal(approve.run(idempotency_key="order 7"), "approval", "ops", tx=None)
    box.drain()
    assert (run.result(timeout=0), other.status()) == ("ops", "pending")


def test_a_run_that_has_waited_for_months_is_found_by_its_key(box: todoku.App, clock: Clock) -> None:
    """The ledger keeps keys for two days; the message keeps its own as long as it is there."""
    approve = approving(box)
    run = approve.using(idempotency_key="order 7").start()
    box.drain()
    clock.forward(MONTHS)
    box.store.retention.prune(history_ttl=86_400.0)
    assert approve.using(idempotency_key="order 7").start().id == run.id  # and no other run has it meanwhile (H16)
    box.signal(approve.run(idempotency_key="order 7"), "approval", "ops", tx=None)
    box.drain()
    assert run.result(timeout=0) == "ops"


def test_a_second_start_with_the_key_is_the_first_run_which_gets_the_signal(box: todoku.App) -> None:
    approve = approving(box)
    first, second = (approve.using(idempotency_key="order 7").start() for _ in range(2))
    assert (second.id, second.duplicate) == (first.id, True)
    box.signal(approve.run(idempotency_key="order 7"), "approval", "ops", tx=None)
    box.drain()
    assert first.result(timeout=0) == "ops"


def test_a_key_that_is_used_again_after_the_run_has_ended_names_the_new_run(box: todoku.App, clock: Clock) -> None:
    approve = approving(box)
    old = approve.using(idempotency_key="order 7").start()
    box.signal(old, "approval", "first", tx=None)
    box.drain()
    with pytest.raises(NotThere, match="no run of approve with the idempotency key 'order 7' waits or runs") as refused:
        box.signal(approve.run(idempotency_key="order 7"), "approval", "late", tx=None)
    assert "it has ended" in (refused.value.hint or "")
    clock.forward(MONTHS)
    box.store.retention.prune(history_ttl=10 * MONTHS)  # of the ledger; the old run stays
    new = approve.using(idempotency_key="order 7").start()
    assert new.id != old.id
    box.signal(approve.run(idempotency_key="order 7"), "approval", "second", tx=None)
    box.drain()
    assert (old.result(timeout=0), new.result(timeout=0)) == ("first", "second")


def test_a_dead_letter_gets_no_signal_by_its_key(box: todoku.App) -> None:
    approve = approving(box)
    run = approve.using(idempotency_key="order 7").start()
    box.drain()
    run.cancel(by="ada", why="a test")
    with pytest.raises(NotThere):
        box.signal(approve.run(idempotency_key="order 7"), "approval", tx=None)


def test_equal_keys_of_two_workflows_are_two_runs_and_a_signal_goes_to_its_own(box: todoku.App) -> None:
    """H12: a key is unique to its workflow."""
    approve, review = approving(box), approving(box, "review")
    approved, reviewed = (flow.using(idempotency_key="7").start() for flow in (approve, review))
    box.signal(review.run(idempotency_key="7"), "approval", "ops", tx=None)
    box.drain()
    assert (approved.status(), reviewed.result(timeout=0)) == ("pending", "ops")


def test_the_other_key_names_no_run(box: todoku.App) -> None:
    """`key=` is for order and limits: any number of runs has it."""
    approve = approving(box)
    approve.using(key="customer 7").start()
    with pytest.raises(NotThere):
        box.signal(approve.run(idempotency_key="customer 7"), "approval", tx=None)


def test_a_run_that_was_started_under_a_former_name_is_found_and_two_are_refused(box: todoku.App) -> None:
    """A signal never goes to two runs."""
    confirm = approving(box, "confirm")
    old = confirm.using(idempotency_key="order 7").start()
    later = todoku.App(box.settings.database)
    approve = approving(later, aliases=("confirm",))
    new = approve.run(idempotency_key="order 7")
    later.signal(new, "approval", "ops", tx=None)
    later.drain()
    assert old.result(timeout=0) == "ops"
    both = [flow.using(idempotency_key="order 8").start() for flow in (confirm, approve)]
    with pytest.raises(NotThere, match="2 runs of approve with the idempotency key 'order 8'"):
        later.signal(approve.run(idempotency_key="order 8"), "approval", tx=None)
    later.drain()
    assert [str(run.status()) for run in both] == ["pending", "pending"]
    later.close()


def test_a_run_that_restarted_is_not_found_by_the_key_of_the_first(box: todoku.App) -> None:
    """R14: it has ended, and the run that follows it has no key of the caller's. Better an error than a lost signal."""

    @box.workflow
    async def again(ctx: todoku.Flow, number: int) -> str:
        if number == 0:
            await ctx.restart(1)
        return await ctx.wait("approval", str)

    again.using(idempotency_key="order 7").start(0)
    box.drain()
    with pytest.raises(NotThere) as refused:
        box.signal(again.run(idempotency_key="order 7"), "approval", tx=None)
    assert "restarted" in (refused.value.hint or "")


def test_a_text_that_is_no_id_is_refused_with_the_way_to_name_a_run_by_its_key(box: todoku.App) -> None:
    approve = approving(box)
    with pytest.raises(InvalidAct, match="no id of a run") as refused:
        box.signal("order 7", "approval", tx=None)
    assert "fulfil.run(idempotency_key=" in (refused.value.hint or "")
    with pytest.raises(InvalidMessage, match="idempotency key"):
        approve.run(idempotency_key="")


def test_a_person_finds_a_run_by_its_key_or_is_told_which_have_it(box: todoku.App) -> None:
    approve, review = approving(box), approving(box, "review")
    run = approve.using(idempotency_key="7").start()
    assert operations.find_run(box.store, "7") == run.id
    other = review.using(idempotency_key="7").start()
    with pytest.raises(InvalidAct, match="several runs have the idempotency key '7'") as refused:
        operations.find_run(box.store, "7")
    assert {str(run.id), str(other.id)} <= set((refused.value.hint or "").replace(",", " ").split())
    box.signal(other, "approval", "done", tx=None)
    box.drain()
    assert operations.find_run(box.store, "7") == run.id  # the other has ended
    box.signal(run, "approval", "done", tx=None)
    box.drain()
    with pytest.raises(InvalidAct):
        operations.find_run(box.store, "7")
    with pytest.raises(NotThere, match="no run with the idempotency key '8'"):
        operations.find_run(box.store, "8")


def test_a_job_with_the_key_is_no_run(box: todoku.App) -> None:
    @box.job
    def pick(sku: str) -> None: ...

    pick.using(idempotency_key="7").enqueue("tea")
    with pytest.raises(NotThere):
        operations.find_run(box.store, "7")


def test_a_signal_of_another_type_says_what_to_do(box: todoku.App, url: str) -> None:
    """A value that one person mistypes must not be the end of a run that others have paid for."""

    @box.workflow("approve")
    async def approve(ctx: todoku.Flow) -> int:
        return await ctx.wait("approval", int)

    run = approve.start()
    box.signal(run, "approval", "yes", tx=None)
    box.drain()
    assert (run.status(), run.delivery().reason) == ("aborted", "INVALID_STEP")
    assert "the signal approval is no int: Expected `int`, got `str` (let the code catch" in (
        run.delivery().error or ""
    )

    later = todoku.App(url)

    @later.workflow("approve")
    async def mended(ctx: todoku.Flow) -> int:
        while True:
            try:
                return await ctx.wait("approval", int)
            except InvalidMessage:
                ctx.log.warning("NOT_A_NUMBER")

    assert run.replay(by="ops", why="mended")
    later.drain()
    later.signal(run.id, "approval", 3, tx=None)
    later.drain()
    assert mended.handle(run.id).result(timeout=0) == 3
    later.close()


@pytest.mark.parametrize("run", [5, None, "order 7"])
def test_what_names_no_run_is_refused(box: todoku.App, run: Any) -> None:
    with pytest.raises(InvalidAct, match="is no id of a run"):
        box.signal(run, "approval", tx=None)


@pytest.mark.parametrize("name", [5, "", "a\0b", "a\ud800b", "a" * 256])
def test_a_name_that_one_database_could_not_store_is_refused_by_both(box: todoku.App, name: Any) -> None:
    run = approving(box).start()
    with pytest.raises(InvalidMessage, match="the name of a signal"):
        box.signal(run, name, tx=None)


def test_a_signal_to_a_plain_job_is_refused(box: todoku.App) -> None:
    @box.job
    def pick() -> None: ...

    with pytest.raises(InvalidAct, match="pick is a job and no workflow"):
        box.signal(pick.enqueue(), "approval", tx=None)
