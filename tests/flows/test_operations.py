"""What people do with runs: show, rewind, undo, signal, and what is refused (R1, R5, R12)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

import todoku
from tests.flows.conftest import Clock
from todoku.core.errors import InvalidAct, NotThere
from todoku.engine.diagnostics.explanation import explain
from todoku.engine.flows import operations
from todoku.engine.flows.operations import ShownRun
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.publish import publish
from todoku.store.situation import read_situations

OPS = Signed("ada", "a test")
calls: list[Any] = []
failing: set[str] = set()


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()
    failing.clear()


def charge(order: int) -> dict[str, Any]:
    return done("charge", {"paid": order, "password": "secret"})


def ship(order: int) -> str:
    return done("ship", f"parcel {order}")


def bill(order: int) -> str:
    return done("bill", f"bill {order}")


def refund(payment: dict[str, Any] | None) -> None:
    calls.append(("refund", payment))


def done(name: str, result: Any) -> Any:
    calls.append(name)
    if name in failing:
        raise todoku.Abort("BY_HAND")  # a reason that is not undone by itself
    return result


def declare(box: todoku.App) -> todoku.Workflow[[int], str]:
    @box.workflow
    async def fulfil(ctx: todoku.Flow, order: int) -> str:
        await ctx.step(charge, order, undo=refund)
        approval = await ctx.wait("approval", str)
        await ctx.step(ship, order)
        await ctx.step(bill, order)
        return approval

    return fulfil


def dead(box: todoku.App) -> todoku.Handle[str]:
    """A run whose last step has ended it, as one that a person may mend."""
    failing.add("bill")
    run = declare(box).start(7)
    box.signal(run.id, "approval", "ops", tx=None)
    box.drain()
    failing.clear()
    assert run.status() == "aborted"
    return run


def publish_again(box: todoku.App, keyed: todoku.Workflow[[int], str]) -> None:
    """Stores the same run again, as a publisher does that reopens dead letters."""
    draft = keyed.call(7).draft()
    assert draft.idempotency is not None
    again = msgspec.structs.replace(draft, idempotency=msgspec.structs.replace(draft.idempotency, reopen=True))
    box.store.run(publish(box.outbox.publishing(), [again]))


def states(box: todoku.App, run: todoku.Handle[Any]) -> list[tuple[str, str]]:
    return [(step.name, step.state) for step in shown(box, run).steps]


def shown(box: todoku.App, run: todoku.Handle[Any]) -> ShownRun:
    return operations.show(box.store, run.id, mask_fields=box.settings.mask_fields)


def audited(box: todoku.App, run: todoku.Handle[Any]) -> list[tuple[str, str, str]]:
    story = box.store.messages.story(run.id)
    assert story is not None
    return [(row.action, row.by, row.why) for row in story.audit]


def broken(box: todoku.App) -> dict[str, tuple[str, ...]]:
    return box.store.broken(history_ttl=1e9, ledger_ttl=1e9)


# ------------------------------------------------------------------------------------------- show


def test_a_run_is_shown_with_its_steps_masked_and_what_it_waits_for(box: todoku.App, clock: Clock) -> None:
    run = declare(box).start(7)
    box.drain()
    clock.forward(60)
    found = shown(box, run)
    assert (found.workflow, found.status, found.undo) == ("fulfil", "pending", None)
    first, second = found.steps
    assert (first.name, first.kind, first.state, first.undoable) == ("charge", "step", "done", True)
    assert (first.arguments, first.result) == ({"order": 7}, {"paid": 7, "password": "***"})
    assert (second.name, second.state, second.signal, second.seconds, second.ended) == (
        "wait", "waiting", "approval", 60.0, None,
    )  # fmt: skip
    assert operations.show(box.store, found.delivery) == operations.show(box.store, str(run.id))


def test_a_sleep_that_is_over_is_shown_as_done(box: todoku.App, clock: Clock) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.sleep(60)
        await ctx.sleep(3600)

    run = flow.start()
    box.drain()
    (step,) = shown(box, run).steps
    assert (step.state, step.until) == ("sleeping", step.started + timedelta(seconds=60))
    clock.forward(61)
    box.drain()
    clock.forward(100)
    over, _ = shown(box, run).steps
    assert (over.state, over.seconds, over.until) == ("done", 60.0, None)


def test_children_are_counted_and_their_results_masked(box: todoku.App, clock: Clock) -> None:
    @box.job(keep_result=True)
    async def pick(number: int) -> dict[str, Any]:
        return {"token": "secret", "number": number}

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.gather(pick.call(1), pick.using(delay=60).call(2))
        await ctx.sleep(60)

    run = flow.start()
    box.drain()
    (step,) = shown(box, run).steps
    assert step.children is not None
    assert (step.state, step.children.ended, step.children.total) == ("waiting", 1, 2)
    clock.forward(61)
    box.drain()
    step = shown(box, run).steps[0]
    assert step.children is not None
    assert (step.state, step.children.ended) == ("done", 2)
    assert step.result == [{"token": "***", "number": 1}, {"token": "***", "number": 2}]


def test_what_is_no_run_is_not_shown_as_one(box: todoku.App) -> None:
    @box.job
    async def pick() -> None: ...

    job = pick.enqueue()
    with pytest.raises(InvalidAct, match="is no run of a workflow"):
        operations.show(box.store, job.id)
    with pytest.raises(NotThere):
        operations.show(box.store, 12345)


# ------------------------------------------------------------------------------------------- rewind


def test_a_rewind_repeats_a_step_and_all_later_ones_and_keeps_them_for_the_audit(box: todoku.App) -> None:
    """R12"""
    run = dead(box)
    act = operations.rewind(box.store, run.id, OPS, to="wait")
    assert act.steps == ("wait", "ship")
    assert run.delivery().replay_count == 1
    assert audited(box, run) == [("rewind to wait", "ada", "a test"), ("replay", "ada", "a test")]
    box.drain()
    assert run.result(timeout=0) == "ops"  # the signal was there again
    assert calls == ["charge", "ship", "bill", "ship", "bill"]
    assert sorted(states(box, run)) == [
        ("bill", "done"), ("charge", "done"), ("ship", "done"), ("ship", "rewound"), ("wait", "done"),
        ("wait", "rewound"),
    ]  # fmt: skip
    assert broken(box) == {}


def test_a_run_can_be_rewound_again_and_by_the_number_of_a_step(box: todoku.App) -> None:
    run = dead(box)
    for number in (1, 2):
        failing.add("bill")
        operations.rewind(box.store, run.id, OPS, to="ship")
        box.drain()
        assert (run.status(), calls.count("ship")) == ("aborted", number + 1)
    failing.clear()
    operations.rewind(box.store, run.delivery().id, OPS, to="1")
    box.drain()
    assert run.result(timeout=0) == "ops"
    assert calls.count("charge") == 2


def test_a_dry_run_says_which_steps_and_changes_nothing(box: todoku.App) -> None:
    run = dead(box)
    before = states(box, run)
    assert operations.rewind(box.store, run.id, OPS, to="charge", dry_run=True).steps == ("charge", "wait", "ship")
    assert operations.undo(box.store, run.id, OPS, dry_run=True).steps == ("charge",)
    assert (states(box, run), run.status(), audited(box, run)) == (before, "aborted", [])


def test_an_unknown_or_ambiguous_step_is_refused_with_the_names(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        for number in range(2):
            await ctx.step(charge, number)
        raise todoku.Abort("NO")

    run = flow.start()
    box.drain()
    with pytest.raises(InvalidAct, match=r"no step 'pay'.*1 charge, 2 charge"):
        operations.rewind(box.store, run.id, OPS, to="pay")
    with pytest.raises(InvalidAct, match="2 steps are called 'charge'"):
        operations.rewind(box.store, run.id, OPS, to="charge")
    assert operations.rewind(box.store, run.id, OPS, to="2").steps == ("charge",)


def test_a_run_that_goes_on_or_has_succeeded_is_not_rewound(box: todoku.App) -> None:
    """R12: a success forks into a new run."""
    run = declare(box).start(7)
    box.drain()
    with pytest.raises(InvalidAct, match="is pending, and no dead letter"):
        operations.rewind(box.store, run.id, OPS, to="charge")
    with pytest.raises(InvalidAct, match="is pending, and no dead letter"):
        operations.undo(box.store, run.id, OPS)
    operations.signal(box.outbox, run.id, "approval", "ops", OPS)
    box.drain()
    with pytest.raises(InvalidAct, match=r"has succeeded.*start a new run"):
        operations.rewind(box.store, run.id, OPS, to="charge")


def test_a_rewind_cancels_children_that_still_run(box: todoku.App) -> None:
    """R11"""

    @box.job
    async def pick() -> None: ...

    @box.workflow(undo="auto")
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.gather(pick.using(delay=3600).call())

    run = flow.start()
    box.drain()
    box.deliveries.settle(run.delivery().id, succeeded=False, by="ada", why="a test")
    operations.rewind(box.store, run.id, OPS, to="gather pick")
    box.drain()
    picks = box.deliveries.find(destination="pick").items
    assert sorted((each.status, each.reason) for each in picks) == [("aborted", "CANCELLED"), ("pending", None)]
    assert states(box, run) == [("gather pick", "rewound"), ("gather pick", "waiting")]
    assert broken(box) == {}


def test_accepting_a_changed_step_repeats_it_alone(box: todoku.App, clock: Clock) -> None:
    """R1"""
    asked = [1]

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[Any]:
        paid = await ctx.step(charge, asked[0])
        parcel = await ctx.step(ship, 1)
        await ctx.sleep(60)
        return [paid["paid"], parcel]

    run = flow.start()
    box.drain()
    asked[0] = 2
    clock.forward(61)
    box.drain()
    assert run.delivery().reason == "STEP_CHANGED"
    assert operations.rewind(box.store, run.id, OPS, accept=True).steps == ("charge",)
    box.drain()
    assert run.result(timeout=0) == [2, "parcel 1"]
    assert calls == ["charge", "ship", "charge"]


def test_accepting_is_only_for_a_run_whose_step_has_changed(box: todoku.App) -> None:
    run = dead(box)
    with pytest.raises(InvalidAct, match="did not stop because a step has changed"):
        operations.rewind(box.store, run.id, OPS, accept=True)
    with pytest.raises(InvalidAct, match="either a step or accept"):
        operations.rewind(box.store, run.id, OPS)


# ------------------------------------------------------------------------------------------- undo and signals


def test_a_person_undoes_a_run_that_was_not_undone_by_itself_once(box: todoku.App) -> None:
    """R5"""
    run = dead(box)
    assert operations.undo(box.store, run.id, OPS).steps == ("charge",)
    assert shown(box, run).undo == "begun"
    with pytest.raises(InvalidAct, match="its steps are undone, or were"):
        operations.undo(box.store, run.id, OPS)
    box.drain()
    assert calls[-1] == ("refund", {"paid": 7, "password": "secret"})
    assert (shown(box, run).undo, audited(box, run)) == ("done", [("undo", "ada", "a test")])


def test_a_run_without_anything_to_undo_says_so(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(ship, 1)
        raise todoku.Abort("NO")

    run = flow.start()
    box.drain()
    with pytest.raises(InvalidAct, match="nothing to undo"):
        operations.undo(box.store, run.id, OPS)


def test_a_run_whose_undo_has_begun_is_never_run_again(box: todoku.App) -> None:
    """R5: neither by a replay, nor by a rewind, nor by publishing it again with its key."""
    failing.add("bill")
    keyed = declare(box).using(idempotency_key="fulfil-7")
    run = keyed.start(7)
    box.signal(run.id, "approval", "ops", tx=None)
    box.drain()
    operations.undo(box.store, run.id, OPS)
    replayed = box.deliveries.replay(run.delivery().id, by="ada", why="a test")
    assert (replayed.replayed, replayed.skipped) == (0, {"its steps are undone, or were": 1})
    with pytest.raises(InvalidAct, match="its steps are undone, or were"):
        operations.rewind(box.store, run.id, OPS, to="charge")
    publish_again(box, keyed)
    assert (run.status(), run.delivery().replay_count) == ("aborted", 0)
    assert "replay" not in [action for action, _, _ in audited(box, run)]
    assert broken(box) == {}


def test_publishing_a_dead_run_again_with_its_key_reopens_it_unless_it_is_undone(box: todoku.App) -> None:
    """H15, R5"""
    failing.add("bill")
    keyed = declare(box).using(idempotency_key="fulfil-7")
    run = keyed.start(7)
    box.signal(run.id, "approval", "ops", tx=None)
    box.drain()
    failing.clear()
    publish_again(box, keyed)
    assert audited(box, run) == [("replay", "publisher", "published again with the same key")]
    box.drain()
    assert run.result(timeout=0) == "ops"


def test_a_dry_replay_counts_no_run_that_is_undone(box: todoku.App) -> None:
    run = dead(box)
    operations.undo(box.store, run.id, OPS)
    acted = box.store.acts.replay(Filter(ids=(run.delivery().id,)), OPS, dry_run=True)
    assert acted.changed == ()


def test_a_person_sends_a_signal_which_is_audited(box: todoku.App) -> None:
    run = declare(box).start(7)
    box.drain()
    assert operations.signal(box.outbox, run.id, "approval", "ada", OPS, dry_run=True).steps == ("wait",)
    assert operations.signal(box.outbox, run.id, "approval", "ada", OPS).steps == ("wait",)
    assert audited(box, run) == [("signal approval", "ada", "a test")]
    box.drain()
    assert run.result(timeout=0) == "ada"
    with pytest.raises(InvalidAct, match="has ended"):
        operations.signal(box.outbox, run.id, "approval", "ada", OPS)


# ------------------------------------------------------------------------------------------- explain


def explained(box: todoku.App, run: todoku.Handle[Any]) -> list[tuple[str, str]]:
    """Why a run does not go on, for one and for many alike, without what is said about workers."""
    delivery = run.delivery()
    situation = box.store.situation(delivery.id)
    assert situation is not None
    many = box.store.database.snapshot(lambda tx: read_situations(tx, [delivery]))
    assert explain(many[delivery.id]) == explain(situation)
    workers = {"no_worker", "unregistered", "draining"}
    return [(each.cause, each.text) for each in explain(situation) if each.cause not in workers]


def test_a_parked_run_says_what_it_waits_for(box: todoku.App, clock: Clock) -> None:
    def flaky() -> None:
        raise ConnectionError

    @box.job
    async def pick(number: int) -> int:
        return number

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.sleep(hours=5)
        await ctx.wait("approval", timeout=timedelta(hours=3))
        await ctx.wait("payment")
        await ctx.gather(*(pick.using(delay=number * 3600).call(number) for number in range(3)))
        await ctx.step(flaky, max_attempts=3, backoff=todoku.table(100))

    run = flow.start()
    box.drain()
    ((cause, text),) = explained(box, run)
    assert (cause, text[:23], text[-14:]) == ("sleeping", "it is sleeping until 20", ", for 5 h more")
    clock.forward(5 * 3600 + 1)
    box.drain()
    ((cause, text),) = explained(box, run)
    assert (cause, text.partition(" until ")[0]) == ("waiting_for_signal", "it is waiting for the signal approval")
    box.signal(run.id, "approval", tx=None)
    box.drain()
    assert explained(box, run) == [("waiting_for_signal", "it is waiting for the signal payment")]
    box.signal(run.id, "payment", tx=None)
    box.drain()
    assert explained(box, run) == [("waiting_for_children", "it is waiting for children, 1 of 3 have ended")]
    clock.forward(3 * 3600)
    box.drain()
    ((cause, text),) = explained(box, run)
    assert (cause, text[:9]) == ("step_back_off", "it waits ")
    assert text.endswith("before the next attempt of test_a_parked_run_says_what_it_waits_for.flaky")


# ------------------------------------------------------------------------------------------- verify


def test_a_run_that_nothing_wakes_although_its_children_have_ended_is_found(box: todoku.App) -> None:
    @box.job
    async def pick() -> None: ...

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.gather(pick.using(delay=3600).call())

    run = flow.start()
    box.drain()
    (child,) = box.deliveries.find(destination="pick").items
    box.deliveries.cancel(child.id, by="ada", why="a test")
    assert broken(box) == {}  # a call waits to be heeded
    with box.store.database.open_transaction(5) as planted:
        planted.connection.execute("delete from todoku_run_call")
        planted.check()
        planted.commit()
    assert broken(box) == {"woken": (f"delivery {run.delivery().id} gather pick",)}
