"""What an operator sees of captures and projections: alerts, metrics, `doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import recorder
from tests.support.world import World
from todoku.core.alert import Reading
from todoku.core.capture import table_rule
from todoku.core.settings import read_settings
from todoku.engine.diagnostics.doctor import Finding, examine
from todoku.engine.observability.alert_sinks import sinks
from todoku.engine.observability.alerts import Alerts, with_database
from todoku.engine.observability.exposition import CAPTURE_CHANGES, CAPTURE_GAUGES, read_gauges, render
from todoku.store.capture_portions import Fence, Portion

PAGE = Path(__file__).resolve().parents[2] / "docs" / "observability.md"


@pytest.fixture
def fence(world: World) -> Fence:
    """A capture that a worker reads."""
    world.store.captures.declare("main", [table_rule("orders", "orders.{op}", "id")], snapshot=True)
    row = world.store.captures.take("main", world.worker(lease=600))
    assert row is not None
    world.store.captures.set_state("main", "streaming", fence=row.fence)
    return row.fence


def found(world: World, what: str) -> list[Finding]:
    return [one for one in examine(world.store, world.settings()) if one.what == what]


def numbers(world: World) -> tuple[float | None, float | None]:
    seen = with_database(Reading(), world.store, stuck_after=600)
    return seen.projection_stopped, seen.capture_stopped


def test_a_capture_that_is_stopped_or_long_away_is_counted(world: World, fence: Fence) -> None:
    kept = world.store.captures
    kept.declare("other", [table_rule("orders", "orders.{op}", "id")], snapshot=True)
    assert numbers(world) == (0, 0)
    kept.set_state("main", "away", reason="SOURCE_AWAY", why="no answer", fence=fence)
    kept.set_state("other", "stopped", reason="SLOT_LOST", why="lost", fence=None)
    assert numbers(world) == (0, 1)
    world.advance(61)
    assert numbers(world) == (0, 2)
    kept.set_state("main", "streaming", fence=fence)
    assert numbers(world) == (0, 1)


def test_a_stopped_projection_is_counted(world: World) -> None:
    """S2-31."""
    world.store.projections.declare("documents", "search", "docs-1")
    assert numbers(world) == (0, 0)
    world.store.projections.stop("documents", "the index is ahead")
    assert numbers(world) == (1, 0)


def test_a_daemon_sends_both_alerts(world: World, fence: Fence) -> None:
    with recorder() as webhook:
        given = read_settings({}, None, http_loopback=True, alert_webhook=f"{webhook.url}/hook")
        alerts = Alerts(world.store, given.alerts, sinks(given), list, database="somewhere", stuck_after=600)
        alerts.look()
        assert webhook.posted == []
        world.store.projections.declare("documents", "search", "docs-1")
        world.store.projections.stop("documents", "the index is ahead")
        world.store.captures.set_state("main", "stopped", reason="SLOT_LOST", why="lost", fence=fence)
        alerts.look()
        alerts.look()
        said = sorted((posted.json["alert"], posted.json["text"]) for posted in webhook.posted)
    assert said == [
        ("capture_stopped", "todoku: 1 captures are stopped, or their source is away (somewhere)"),
        ("projection_stopped", "todoku: 1 projections are stopped (somewhere)"),
    ]


def test_the_metrics_of_captures_have_their_name_as_label(world: World, fence: Fence) -> None:
    text = render([], read_gauges(world.store, stuck_after=600)).decode()
    assert 'capture_stopped{capture="main"} 0.0' in text
    assert 'capture_changes_total{capture="main"} 0.0' in text
    assert "capture_behind_bytes{" not in text  # not measured yet: unknown is not 0
    world.store.captures.store(fence, Portion(lsn=9, drafts=world.drafts(3)), notify=False)
    world.store.captures.measure(fence, behind=12, retained=4096)
    world.store.captures.set_state("main", "stopped", reason="SLOT_LOST", why="lost", fence=fence)
    text = render([], read_gauges(world.store, stuck_after=600)).decode()
    for line in (
        'capture_behind_bytes{capture="main"} 12.0', 'capture_retained_bytes{capture="main"} 4096.0',
        'capture_stopped{capture="main"} 1.0', 'capture_changes_total{capture="main"} 3.0',
        "# TYPE capture_changes_total counter",
    ):  # fmt: skip
        assert line in text


def test_the_page_of_metrics_names_those_of_captures() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"| `{name}{{capture}}` | gauge |" in page for name in CAPTURE_GAUGES)
    assert f"| `{CAPTURE_CHANGES[0]}{{capture}}` | counter |" in page


def test_the_doctor_says_which_capture_does_not_read_and_why(world: World, fence: Fence) -> None:
    kept = world.store.captures
    assert [(one.level, one.text) for one in found(world, "captures")] == [("ok", "1, each read by a worker")]
    kept.warn(fence, ["the source has max_slot_wal_keep_size = -1"])
    kept.set_state("main", "away", reason="SOURCE_AWAY", why="it does not answer", fence=fence)
    assert [(one.level, one.text) for one in found(world, "captures")] == [
        ("warn", "main: the source has max_slot_wal_keep_size = -1"),
        ("warn", "main is away, SOURCE_AWAY: it does not answer"),
    ]
    kept.set_state("main", "stopped", reason="SLOT_LOST", why="the slot has no log any more", fence=fence)
    kept.warn(fence, [])
    (stopped,) = found(world, "captures")
    assert (stopped.level, stopped.text, stopped.todo) == (
        "problem", "main is stopped, SLOT_LOST: the slot has no log any more", "todoku capture show main"
    )  # fmt: skip
    kept.set_state("main", "streaming", fence=fence)
    kept.release(fence)
    (unread,) = found(world, "captures")
    assert (unread.level, "no worker reads main" in unread.text) == ("warn", True)


def test_the_doctor_says_which_projection_is_stopped(world: World) -> None:
    assert found(world, "projections") == []
    world.store.projections.declare("documents", "search", "docs-1")
    assert found(world, "projections") == []
    world.store.projections.stop("documents", "its index is ahead")
    (one,) = found(world, "projections")
    assert (one.level, one.text, one.todo) == (
        "problem", "documents is stopped: its index is ahead", "todoku projection rebuild documents"
    )  # fmt: skip
