"""Captures from the command line: looked at, read anew, dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Run, Shop, misused, refused, rows, said
from tests.support.world import World
from todoku.core.capture import table_rule
from todoku.store.capture_portions import Fence, Portion, TableProgress

WHY = ("--why", "a test")
APP = """
import todoku

box = todoku.App()
box.capture("orders", topic="orders.{op}", key="id", database="postgresql://nobody@127.0.0.1:1/gone?connect_timeout=1")
"""


def declare(world: World) -> Fence:
    """A capture of two tables that a worker reads."""
    kept = world.store.captures
    rules = [table_rule("orders", "orders.{op}", "id"), table_rule("shop.lines", "lines", ("id", "n"))]
    kept.declare("main", rules, snapshot={"public.orders": True, "shop.lines": False})
    row = kept.take("main", world.worker(name="reader"))
    assert row is not None
    page = TableProgress(table="public.orders", position="[1]", copied=7, expected=9, phase="reading")
    kept.store(row.fence, Portion(lsn=0x1_0000_00FF, drafts=world.drafts(3), page=page), notify=False)
    kept.measure(row.fence, behind=10, retained=2048)
    kept.set_state("main", "streaming", fence=row.fence)
    return row.fence


def test_captures_are_listed_and_shown(shop: Shop) -> None:
    assert said(shop.run("capture", "list")) == ["no captures"]
    assert rows(shop.run("capture", "list", "--json")) == []
    declare(shop.world)
    (row,) = rows(shop.run("capture", "list", "--json"))
    assert row == {
        "name": "main", "state": "streaming", "reason": None, "reader": "reader", "behind_bytes": 10,
        "retained_bytes": 2048, "changes": 3, "committed_at": None, "tables": 2, "snapshots_done": 1,
    }  # fmt: skip
    (one,) = rows(shop.run("capture", "show", "main", "--json"))
    assert (one["lsn"], one["why"], one["warnings"], one["generation"]) == ("1/FF", None, [], 1)
    assert one["tables"][0] == {
        "table": "public.orders", "topic": "orders.{op}", "key": "id", "snapshot": True, "phase": "reading",
        "copied": 7, "expected": 9,
    }  # fmt: skip
    text = "\n".join(said(shop.run("capture", "show", "main")))
    assert "read by reader" in text
    assert "10 bytes behind, the source keeps 2.0 KiB of log for it" in text


def test_what_is_stopped_says_why_and_what_to_do(shop: Shop) -> None:
    fence = declare(shop.world)
    kept = shop.world.store.captures
    kept.warn(fence, ["the disk may fill"])
    kept.set_state("main", "stopped", reason="SLOT_LOST", why="run `todoku capture snapshot main`", fence=fence)
    kept.release(fence)
    text = "\n".join(said(shop.run("capture", "show", "main")))
    for part in (
        "stopped (SLOT_LOST)",
        "no worker reads it",
        "run `todoku capture snapshot main`",
        "the disk may fill",
    ):
        assert part in text


def test_a_snapshot_is_asked_for_and_audited(shop: Shop) -> None:
    declare(shop.world)
    kept = shop.world.store.captures
    assert said(shop.run("capture", "snapshot", "main", "--dry-run")) == ["main: would read public.orders"]
    assert shop.audit() == []
    (done,) = rows(shop.run("capture", "snapshot", "main", "--table", "shop.lines", "--json", *WHY))
    assert done == {
        "act": "snapshot", "capture": "main", "tables": ["shop.lines"], "new_slot": False, "dry_run": False
    }  # fmt: skip
    assert shop.audit() == [("ada", "snapshot of shop.lines", "capture:main", "a test")]
    kept.set_state("main", "stopped", reason="SLOT_LOST", why="lost", fence=None)
    (line,) = said(shop.run("capture", "snapshot", "main", *WHY))
    assert line == "main: a worker will read public.orders, after it has made a new slot"
    row = kept.get("main")
    assert row is not None
    assert (row.state, row.lsn, row.generation) == ("starting", 0, 3)


def test_what_cannot_be_read_anew_is_refused_with_what_can(shop: Shop) -> None:
    assert "there is no capture 'main'" in refused(shop.run("capture", "snapshot", "main", *WHY))
    assert "there is no capture 'main'" in refused(shop.run("capture", "show", "main"))
    declare(shop.world)
    line = refused(shop.run("capture", "snapshot", "main", "--table", "nothing", *WHY))
    assert "no table 'public.nothing'" in line
    assert "public.orders" in line
    assert "cannot be empty" in misused(shop.run("capture", "snapshot", "main", "--why", " "))


def test_a_capture_is_forgotten_and_what_stays_at_the_source_is_said(shop: Shop) -> None:
    declare(shop.world)
    kept = shop.world.store.captures
    row = kept.get("main")
    assert row is not None
    first, *rest = said(shop.run("capture", "drop", "main", "--forget", "--dry-run"))
    assert first == "main: would drop the capture"
    assert kept.get("main") is not None
    first, second, *sql = said(shop.run("capture", "drop", "main", "--forget", *WHY))
    assert first == "main: dropped the capture"
    assert row.slot in second
    assert sql == [
        f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{row.slot}';",
        f"drop publication if exists {row.publication};",
    ]
    assert rest[1:] == sql
    assert kept.list() == ()
    assert shop.audit() == [("ada", "drop", "capture:main", "a test")]


def test_a_drop_at_the_source_needs_the_app_that_knows_it(shop: Shop, run: Run, tmp_path: Path) -> None:
    assert "--forget" in misused(shop.run("capture", "drop", "main", *WHY))
    (tmp_path / "shop.py").write_text(APP)
    declare(shop.world)
    given = {"TODOKU_DATABASE": shop.world.url, "TODOKU_BY": "ada"}
    (line,) = said(run("capture", "drop", "main", "--app", "shop:box", "--dry-run", **given))
    row = shop.world.store.captures.get("main")
    assert row is not None
    assert line == f"main: would drop the slot {row.slot}, its publication and the capture"
    assert "could not be dropped at the source" in refused(
        run("capture", "drop", "main", "--app", "shop:box", *WHY, **given)
    )  # fmt: skip
    assert shop.world.store.captures.get("main") is not None  # nothing is forgotten while the slot stays
    assert "no capture 'other'" in misused(run("capture", "drop", "other", "--app", "shop:box", **given))


@pytest.mark.postgres
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_the_sql_that_is_said_drops_what_is_there_and_nothing_else(shop: Shop) -> None:
    """It may be run although the slot or the publication is gone already."""
    declare(shop.world)
    *_, first, second = said(shop.run("capture", "drop", "main", "--forget", *WHY))
    for statement in (first, second):
        shop.world.sql(statement)
