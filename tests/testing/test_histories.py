"""Recorded histories, and changed code that is tried on them: what passes, what is reported (R1), and that nothing is
called, written, published or waited for.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import todoku
from todoku.core.errors import InvalidAct, UnknownJob
from todoku.testing import (
    HistoryReplay,
    RunHistory,
    read_histories,
    record_history,
    replay_history,
    write_histories,
)

Body = Callable[..., Awaitable[Any]]

calls: list[Any] = []


class Payment(msgspec.Struct):
    order: int
    amount: int


def charge(order: int, amount: int = 1) -> Payment:
    calls.append(("charge", order, amount))
    return Payment(order, amount)


def refund(payment: Payment | None) -> None:
    calls.append(("refund", payment))


async def ship(order: int) -> str:
    calls.append(("ship", order))
    return f"parcel {order}"


async def reserve(order: int) -> str:
    calls.append(("reserve", order))
    return f"shelf {order}"


def note(tx: Any, order: int) -> None:
    calls.append(("note", order))


def flaky() -> None:
    calls.append("flaky")
    raise ConnectionError("not today")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[todoku.App]:
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    box.migrate()
    yield box
    box.close()


def declare(box: todoku.App, body: Body, **options: Any) -> todoku.Workflow[..., Any]:
    """The workflow `fulfil` with this body."""

    async def fulfil(ctx: todoku.Flow, order: int) -> Any:
        return await body(ctx, order)

    return box.workflow("fulfil", **options)(fulfil)


def recorded(box: todoku.App, body: Body, *, signals: tuple[object, ...] = (), **options: Any) -> RunHistory:
    """The history of a run of this body, as far as it comes by itself and with these signals."""
    box = todoku.App(box.settings.database) if "fulfil" in box.jobs else box
    run = declare(box, body, **options).start(7)
    for value in signals:
        box.signal(run, "approval", value, tx=None)
    box.drain()
    history = record_history(box, run)
    calls.clear()
    return history


def replayed(history: RunHistory, body: Body, *, new: dict[str, object] | None = None, **options: Any) -> HistoryReplay:
    """Tries a body on a history, in an App whose database does not exist: nothing is read or written."""
    removed = options.pop("removed", ())
    elsewhere = todoku.App("sqlite:////nowhere/at/all.db")

    @elsewhere.job
    async def pick(sku: str) -> str:
        calls.append(("pick", sku))
        return sku

    elsewhere.route("order.*", to=todoku.log())
    declare(elsewhere, body, **options)
    report = replay_history(elsewhere, history, new=new, removed=removed)
    assert calls == []
    return report


def names(report: HistoryReplay) -> list[str]:
    return [step.name for step in report.next]


async def usual(ctx: todoku.Flow, order: int) -> str:
    payment = await ctx.step(charge, order, undo=refund)
    await ctx.step(note, order, transactional=True)
    approval = await ctx.wait("approval", str)
    parcel = await ctx.step(ship, payment.order)
    return f"{parcel}, {approval}"


# --------------------------------------------------------------------------------------------- recording


def test_a_history_is_a_line_of_json_with_payloads_in_the_clear(box: todoku.App, tmp_path: Path) -> None:
    history = recorded(box, usual)
    write_histories(tmp_path / "histories.jsonl", [history, history])
    assert read_histories(tmp_path / "histories.jsonl") == [history, history]
    assert (history.workflow, history.status, history.arguments, history.result) == (
        "fulfil", "pending", {"order": 7}, None,
    )  # fmt: skip
    assert [(step.number, step.name, step.kind, step.state, step.undo) for step in history.steps] == [
        (1, "charge", "step", "done", True),
        (2, "note", "step", "done", False),
        (3, "wait", "wait", "open", False),
    ]
    assert (history.steps[0].arguments, history.steps[0].result) == (
        {"order": 7}, {"order": 7, "amount": 1},
    )  # fmt: skip


def test_a_line_that_is_no_history_or_of_a_later_format_is_named(tmp_path: Path) -> None:
    file = tmp_path / "histories.jsonl"
    for line in ("{}", "nothing", '{"format":2,"id":"01a1ecf8-37f8-79f8-9039-2df573a1ee6a","workflow":"f"}'):
        file.write_text(f"\n{line}\n")
        with pytest.raises(InvalidAct, match=r"line 2 of .*is no history"):
            read_histories(file)


def test_an_encrypted_run_is_recorded_only_when_that_is_said_and_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: the keys of its steps are digests under a secret, which the history has then."""
    with monkeypatch.context() as patched:
        patched.setenv("TODOKU_MASTER_KEYS", "k1:" + base64.b64encode(b"k" * 32).decode())
        box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    box.migrate()
    run = declare(box, usual, encrypted=True).start(7)
    box.drain()
    with pytest.raises(InvalidAct, match=r"is encrypted.*--decrypt"):
        record_history(box, run)
    history = record_history(box, run, decrypt=True)
    box.close()
    calls.clear()
    assert history.arguments == {"order": 7}
    assert history.steps[0].result == {"order": 7, "amount": 1}
    report = replayed(history, usual)
    assert (report.ok, names(report)) == (True, ["wait"])


# ----------------------------------------------------------------------------------------- harmless changes


def test_the_same_code_stops_where_the_history_ends(box: todoku.App) -> None:
    report = replayed(recorded(box, usual), usual)
    report.check()
    (step,) = report.next
    assert (step.name, step.kind, step.arguments, step.begun) == ("wait", "wait", "approval", True)
    assert (report.end, report.same_end, report.unused, report.versions) == (None, None, (), {})


def test_a_finished_run_comes_to_the_same_end(box: todoku.App) -> None:
    history = recorded(box, usual, signals=("ana",))
    assert history.status == "succeeded"
    report = replayed(history, usual)
    assert (report.ok, report.same_end, report.next) == (True, True, ())
    assert report.end is not None
    assert report.end.result == "parcel 7, ana"


def test_another_order_another_body_and_a_new_step_at_the_end_pass(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> str:
        approval = await ctx.wait("approval", str)
        payment, _ = await asyncio.gather(
            ctx.step(charge, order), ctx.step(note, order, transactional=True)
        )  # fmt: skip
        parcel = await ctx.step(ship, payment.order)
        await ctx.step(reserve, order)
        return f"{parcel}, {approval}, but not the same"

    report = replayed(recorded(box, usual, signals=("ana",)), body)
    report.check()
    assert names(report) == ["reserve"]


def test_a_sleep_that_is_under_way_counts_as_over(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> str:
        await ctx.sleep(days=3)
        return await ctx.step(ship, order)

    async def changed(ctx: todoku.Flow, order: int) -> str:
        await ctx.sleep(days=3)
        raise KeyError("only after the sleep")

    history = recorded(box, body)
    assert names(replayed(history, body)) == ["ship"]
    report = replayed(history, changed)
    assert (report.ok, report.failure) == (False, "INTERNAL_ERROR: KeyError: 'only after the sleep'")


def test_a_step_that_was_added_before_stored_ones_is_told_what_it_returns(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> str:
        shelf = await ctx.step(reserve, order)
        await ctx.sleep(5)
        return shelf + await usual(ctx, order)

    history = recorded(box, usual)
    report = replayed(history, body)
    assert (report.ok, names(report), [step.name for step in report.unused]) == (
        False, ["reserve"], ["charge", "note", "wait"],
    )  # fmt: skip
    assert 'new={"reserve": …}' in report.problems[0]
    report = replayed(history, body, new={"reserve": "shelf 1", "sleep": None})
    assert (report.ok, names(report)) == (True, ["wait"])


def test_values_and_versions_are_as_recorded_and_new_ones_are_drawn(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(ship, (await ctx.uuid()).int % 1000)
        await ctx.wait("approval", str)

    async def changed(ctx: todoku.Flow, order: int) -> None:
        if await ctx.version("reserve first"):
            await ctx.step(reserve, order)
        await ctx.step(ship, (await ctx.uuid()).int % 1000)
        await ctx.wait("approval", str)
        if await ctx.version("then charge"):
            await ctx.step(charge, order)

    report = replayed(recorded(box, body), changed)
    assert (report.ok, names(report), report.versions) == (True, ["wait"], {"reserve first": False})
    report = replayed(recorded(box, body, signals=("yes",)), changed)
    assert (report.ok, names(report)) == (True, ["charge"])
    assert report.versions == {"reserve first": False, "then charge": True}


# -------------------------------------------------------------------------------------------- what is reported


def test_a_changed_argument_is_reported_with_both(box: todoku.App) -> None:
    """R1"""

    async def body(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order, 2)
        await ctx.wait("approval", str)

    history = recorded(box, usual)
    report = replayed(history, body)
    assert report.changed is not None
    assert (report.changed.step.arguments, report.changed.arguments) == (
        {"order": 7}, {"order": 7, "amount": 2},
    )  # fmt: skip
    with pytest.raises(AssertionError) as caught:
        report.check()
    for part in (f"fulfil {history.id}", "step 1, charge", '"amount":2', "ctx.version", "rewind", 'on_change="run"'):
        assert part in str(caught.value)
    assert replayed(history, body, on_change="run", removed=["note"]).ok


def test_a_changed_argument_beside_a_branch_that_waits_is_reported(box: todoku.App) -> None:
    """R1, R9"""

    def body(amount: int) -> Body:
        async def both(ctx: todoku.Flow, order: int) -> None:
            await asyncio.gather(ctx.wait("approval", str), ctx.step(charge, order, amount))

        return both

    history = recorded(box, body(1))
    assert replayed(history, body(1)).ok
    assert replayed(history, body(2)).changed is not None


def test_a_removed_or_renamed_step_is_reported_as_unused(box: todoku.App) -> None:
    async def removed(ctx: todoku.Flow, order: int) -> str:
        await ctx.step(charge, order)
        approval = await ctx.wait("approval", str)
        return f"{await ctx.step(ship, order)}, {approval}"

    async def renamed(ctx: todoku.Flow, order: int) -> str:
        await ctx.step(reserve, order)
        return await ctx.wait("approval", str)

    history = recorded(box, usual, signals=("ana",))
    report = replayed(history, removed)
    assert [step.name for step in report.unused] == ["note"]
    assert "removed=['note']" in report.problems[0]
    assert replayed(history, removed, removed=["note"]).ok
    report = replayed(history, renamed)
    assert not report.ok
    assert "it would run again" in report.problems[0]


def test_a_removed_sleep_or_value_is_listed_and_harmless(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> str:
        await ctx.now()
        await ctx.sleep(0)
        return await ctx.step(ship, order)

    async def changed(ctx: todoku.Flow, order: int) -> str:
        return await ctx.step(ship, order)

    report = replayed(recorded(box, body), changed)
    assert (report.ok, [step.name for step in report.unused]) == (True, ["now", "sleep"])


def test_a_result_that_does_not_fit_its_type_any_more_is_reported(box: todoku.App) -> None:
    def body(kind: type[Any]) -> Body:
        def pay(order: int) -> Any:
            calls.append("pay")
            return {"order": order}

        pay.__annotations__["return"] = kind

        async def run(ctx: todoku.Flow, order: int) -> None:
            await ctx.step(pay, order)
            await ctx.wait("approval", kind)

        return run

    history = recorded(box, body(dict), signals=({"by": "ana"},))
    assert replayed(history, body(dict)).ok
    report = replayed(history, body(Payment))
    assert [(each.name, each.result) for each in report.unreadable] == [
        ("test_a_result_that_does_not_fit_its_type_any_more_is_reported.body.pay", {"order": 7})
    ]
    assert "cannot be read" in report.problems[0]


def test_another_result_an_exception_and_arguments_that_do_not_fit_are_reported(box: todoku.App) -> None:
    async def other(ctx: todoku.Flow, order: int) -> str:
        return (await usual(ctx, order)).upper()

    async def broken(ctx: todoku.Flow, order: int) -> str:
        await usual(ctx, order)
        raise ValueError("a bug")

    async def given_up(ctx: todoku.Flow, order: int) -> str:
        await usual(ctx, order)
        raise todoku.Abort("REFUSED")

    history = recorded(box, usual, signals=("ana",))
    report = replayed(history, other)
    assert (report.same_end, "PARCEL 7, ANA" in report.problems[0]) == (False, True)
    assert replayed(history, broken).problems == ("the code fails: INTERNAL_ERROR: ValueError: a bug",)
    assert "aborted, REFUSED" in replayed(history, given_up).problems[0]
    wrong = msgspec.structs.replace(history, arguments={"order": "seven"})
    assert "BAD_PAYLOAD" in replayed(wrong, usual).problems[0]
    with pytest.raises(UnknownJob, match="no workflow 'fulfil'"):
        replay_history(todoku.App("sqlite:////nowhere/at/all.db"), history)


def test_a_dead_letter_comes_to_its_end_or_goes_on_with_mended_code(box: todoku.App) -> None:
    """R5: what was undone is replayed as it was before."""

    async def body(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order, undo=refund)
        raise todoku.Abort("REFUSED")

    async def mended(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order, undo=refund)
        await ctx.step(ship, order)

    history = recorded(box, body)
    assert [step.state for step in history.steps] == ["undone"]
    report = replayed(history, body)
    assert (report.ok, report.same_end) == (True, True)
    assert (replayed(history, mended).ok, names(replayed(history, mended))) == (True, ["ship"])


def test_a_step_that_has_failed_fails_again_and_one_that_is_tried_again_is_next(box: todoku.App) -> None:
    """R12"""

    def body(attempts: int) -> Body:
        async def run(ctx: todoku.Flow, order: int) -> None:
            await ctx.step(flaky, max_attempts=attempts, backoff=todoku.table(60))

        return run

    history = recorded(box, body(1))
    report = replayed(history, body(1))
    assert (history.reason, report.ok, report.same_end) == ("STEP_FAILED", True, True)
    assert names(replayed(recorded(box, body(5)), body(5))) == ["flaky"]


# ------------------------------------------------------------------------------------------- children, publish


async def fan_out(ctx: todoku.Flow, order: int) -> list[str]:
    pick = ctx.run.runtime.declarations.jobs["pick"]
    picked = await ctx.gather(pick.call("tea"), pick.call("rice"))
    first = await ctx.race(pick.call("salt"), pick.call("milk"))
    await ctx.publish("order.picked", {"order": order})
    await ctx.wait("approval", str)
    return [*picked, first]


@pytest.fixture
def with_children(box: todoku.App) -> todoku.App:
    @box.job
    async def pick(sku: str) -> str:
        return sku

    box.route("order.*", to=todoku.log())
    return box


def test_children_races_and_publishes_are_neither_started_nor_published(with_children: todoku.App) -> None:
    """R11"""
    history = recorded(with_children, fan_out)
    assert [step.name for step in history.steps] == ["gather pick", "race pick", "publish order.picked", "wait"]
    report = replayed(history, fan_out)
    assert (report.ok, names(report)) == (True, ["wait"])
    for number, step in enumerate(history.steps):
        before = msgspec.structs.replace(history, steps=history.steps[:number])
        report = replayed(before, fan_out)
        assert (report.ok, names(report)) == (True, [step.name])


def test_changed_calls_of_children_are_reported(with_children: todoku.App) -> None:
    """R1"""

    async def changed(ctx: todoku.Flow, order: int) -> None:
        pick = ctx.run.runtime.declarations.jobs["pick"]
        await ctx.gather(pick.call("tea"), pick.call("coffee"))

    report = replayed(recorded(with_children, fan_out), changed)
    assert report.changed is not None
    assert report.changed.step.name == "gather pick"


def test_a_run_that_begins_anew_ends_there(box: todoku.App) -> None:
    async def body(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(ship, order)
        if order < 8:
            await ctx.restart(order + 1)

    history = recorded(box, body)
    report = replayed(history, body)
    assert (history.status, report.ok, report.same_end) == ("succeeded", True, True)
    before = msgspec.structs.replace(history, steps=history.steps[:1], status="pending")
    assert names(replayed(before, body)) == ["restart"]


async def test_it_works_in_an_async_test(box: todoku.App) -> None:
    run = await declare(box, usual).astart(7)
    await box.adrain()
    history = record_history(box, run)
    calls.clear()
    assert replayed(history, usual).ok
