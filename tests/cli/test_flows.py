"""`todoku flow`: what a person does with runs of workflows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import todoku
from tests.cli.program import Shop, misused, refused, rows, said
from todoku.testing import read_histories, replay_history


def charge(order: int) -> str:
    return f"paid {order}"


def refund(payment: str | None) -> None: ...


def ship(order: int) -> str:
    raise todoku.Abort("BY_HAND", "out of stock")


@pytest.fixture
def box(shop: Shop) -> Iterator[todoku.App]:
    box = todoku.App(shop.world.url)
    yield box
    box.close()


@pytest.fixture
def waiting(box: todoku.App) -> todoku.Handle[None]:
    """A run that has charged, and waits for an approval."""

    @box.workflow
    async def fulfil(ctx: todoku.Flow, order: int) -> None:
        await ctx.step(charge, order, undo=refund)
        await ctx.wait("approval")
        await ctx.step(ship, order)

    run = fulfil.using(idempotency_key="order 7").start(7)
    box.drain()
    return run


@pytest.fixture
def dead(box: todoku.App, waiting: todoku.Handle[None]) -> todoku.Handle[None]:
    """It was approved, and could not ship."""
    box.signal(waiting.id, "approval", tx=None)
    box.drain()
    assert waiting.status() == "aborted"
    return waiting


def test_show_has_a_line_for_each_step(shop: Shop, waiting: todoku.Handle[None]) -> None:
    lines = said(shop.run("flow", "show", str(waiting.id)))
    assert lines[:2] == [f"run       {waiting.id}", "workflow  fulfil"]
    assert lines[3] == "status    pending"
    head, first, second = (line.split() for line in lines[5:])
    assert head == ["#", "name", "state", "took", "time", "told"]
    assert first[:3] == ["1", "charge", "done"]
    assert second[:3] == ["2", "wait", "waiting"]
    assert second[-4:] == ["for", "the", "signal", "approval"]


def test_show_as_json_has_everything_of_the_steps(shop: Shop, waiting: todoku.Handle[None]) -> None:
    (found,) = rows(shop.run("flow", "show", str(waiting.delivery().id), "--json"))
    assert (found["id"], found["status"], found["workflow"]) == (str(waiting.id), "pending", "fulfil")
    first, second = found["steps"]
    assert (first["name"], first["result"], first["undoable"]) == ("charge", "paid 7", True)
    assert (second["state"], second["signal"]) == ("waiting", "approval")


def test_a_signal_wakes_the_run_and_is_audited(shop: Shop, box: todoku.App, waiting: todoku.Handle[None]) -> None:
    assert said(shop.run("flow", "signal", str(waiting.id), "approval", '{"by":"ada"}', "--dry-run")) == [
        "would: sent approval: wait"
    ]
    assert said(shop.run("flow", "signal", str(waiting.id), "approval", "--why", "she said so")) == [
        "sent approval: wait"
    ]
    assert shop.audit() == [("ada", "signal approval", f"delivery:{waiting.delivery().id}", "she said so")]
    box.drain()
    assert waiting.status() == "aborted"
    assert "has ended" in refused(shop.run("flow", "signal", str(waiting.id), "approval"))
    misused(shop.run("flow", "signal", str(waiting.id), "approval", "{"))


def test_a_run_is_named_by_the_key_it_was_started_with(
    shop: Shop, box: todoku.App, waiting: todoku.Handle[None]
) -> None:
    (found,) = rows(shop.run("flow", "show", "--key", "order 7", "--json"))
    assert found["id"] == str(waiting.id)
    assert said(shop.run("flow", "signal", "--key", "order 7", "approval", '{"by":"ada"}')) == ["sent approval: wait"]
    assert shop.world.sql("select payload from todoku_signal") == [('{"by":"ada"}',)]
    box.drain()
    assert said(shop.run("flow", "rewind", "--key", "order 7", "--to", "wait", "--dry-run")) == ["would: rewound: wait"]
    assert said(shop.run("flow", "undo", "--key", "order 7", "--dry-run")) == ["would: is undoing: charge"]
    assert "no run with the idempotency key 'order 8'" in refused(shop.run("flow", "show", "--key", "order 8"))


def test_a_run_is_named_once(shop: Shop, waiting: todoku.Handle[None]) -> None:
    for act in (["show"], ["undo"], ["rewind", "--to", "wait"]):
        assert "Say which run" in misused(shop.run("flow", *act))
        assert "Say which run" in misused(shop.run("flow", *act, str(waiting.id), "--key", "order 7"))
    for words in ([], ["approval"], ["--key", "order 7"], ["--key", "order 7", str(waiting.id), "approval", "1"]):
        assert "ID NAME [JSON]" in misused(shop.run("flow", "signal", *words))


def test_rewind_repeats_a_step_and_the_later_ones(shop: Shop, dead: todoku.Handle[None]) -> None:
    id = str(dead.delivery().id)
    assert said(shop.run("flow", "rewind", id, "--to", "charge", "--dry-run")) == ["would: rewound: charge, wait"]
    assert said(shop.run("flow", "rewind", id, "--to", "wait", "--why", "mended")) == ["rewound: wait"]
    assert shop.statuses() == {int(id): "pending"}
    assert [row[1] for row in shop.audit()] == ["rewind to wait", "replay"]
    assert "is pending, and no dead letter" in refused(shop.run("flow", "rewind", id, "--to", "wait"))


def test_rewind_needs_to_know_where_to_begin(shop: Shop, dead: todoku.Handle[None]) -> None:
    misused(shop.run("flow", "rewind", str(dead.id)))
    misused(shop.run("flow", "rewind", str(dead.id), "--to", "charge", "--accept"))
    assert "1 charge, 2 wait" in refused(shop.run("flow", "rewind", str(dead.id), "--to", "pay"))


def test_undo_is_begun_once_and_ends_replays(shop: Shop, dead: todoku.Handle[None]) -> None:
    id = str(dead.delivery().id)
    assert rows(shop.run("flow", "undo", id, "--json")) == [
        {"act": "undo", "run": str(dead.id), "steps": ["charge"], "dry_run": False}
    ]
    assert "undone" in refused(shop.run("flow", "undo", id))
    replayed = shop.run("replay", id)
    assert (replayed.returncode, replayed.stdout.splitlines()) == (
        1, ["replay: changed 0 of 1", "  1 skipped: its steps are undone, or were"],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- export


def test_export_prints_histories_that_replay_and_the_audit_says_who(
    shop: Shop, box: todoku.App, waiting: todoku.Handle[None], tmp_path: Path
) -> None:
    lines = said(shop.run("flow", "export", str(waiting.id), "--by", "ada", "--why", "a test of the new code"))
    (tmp_path / "histories.jsonl").write_text("\n".join(lines))
    (history,) = read_histories(tmp_path / "histories.jsonl")
    assert (history.id, history.arguments, history.steps[0].result) == (waiting.id, {"order": 7}, "paid 7")
    replay_history(box, history).check()
    story = box.store.messages.story(waiting.id)
    assert story is not None
    assert [(row.action, row.by, row.why) for row in story.audit] == [("export", "ada", "a test of the new code")]


def test_export_finds_the_runs_of_a_workflow_unfinished_ones_first(
    shop: Shop, box: todoku.App, dead: todoku.Handle[None]
) -> None:
    @box.workflow
    async def brief(ctx: todoku.Flow, number: int) -> int:
        if number == 1:
            await ctx.wait("never")
        return number

    started = [brief.start(number).id for number in range(4)]
    box.drain()
    found = rows(shop.run("flow", "export", "--workflow", "brief", "--limit", "2"))
    assert [(run["id"], run["status"]) for run in found] == [
        (str(started[1]), "pending"), (str(started[3]), "succeeded"),
    ]  # fmt: skip
    assert [run["reason"] for run in rows(shop.run("flow", "export", "--workflow", "fulfil"))] == ["BY_HAND"]
    (line,) = said(shop.run("flow", "export", "--workflow", "fulfil", "--dry-run"))
    assert line == f"would export 1 runs: {dead.delivery().id}"


def test_export_refuses_what_it_cannot_export(shop: Shop, box: todoku.App) -> None:
    assert "give their IDs, or --workflow NAME" in misused(shop.run("flow", "export"))
    assert "there is no run 12345" in refused(shop.run("flow", "export", "12345"))
    assert "there is no run of nothing" in refused(shop.run("flow", "export", "--workflow", "nothing"))
