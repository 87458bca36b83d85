"""`todoku flow`: what a person does with runs of workflows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import todoku
from tests.cli.program import Shop, misused, refused, rows, said


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

    run = fulfil.start(7)
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
