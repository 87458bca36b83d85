"""What `make bench` makes of its figures: medians, ratios beside the bars, losses, plots. No time is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.bars import Bar
from bench.drains import Figures, Sizes
from bench.judging import Judged, Middle, Run, contenders, judged, middle, percentile
from bench.peers.catalogue import PEERS
from bench.peers.peer import Row
from bench.results import losses, text, write

NAMES = ("todoku", "todoku-daemon", "todoku-sqlite", "pgqueuer", "oban")


def rates(*values: float, **more: float) -> list[Figures]:
    return [Figures({"rate": value, **more}) for value in values]


def sample() -> Run:
    """Three rounds of figures that were never measured."""
    return Run(
        machine="2 cores", servers=("PostgreSQL 15",), peers=tuple(peer for peer in PEERS if peer.name in NAMES),
        versions={"pgqueuer": ("pgqueuer 1.6.0",)}, sizes=Sizes(), rounds=3,
        found={
            (Row.DRAIN, "todoku"): rates(30_000, 40_000, 35_000, server_us=40.0, bulk_rate=16_000.0),
            (Row.DRAIN, "pgqueuer"): rates(10_000, 12_000, 11_000, server_us=50.0, bulk_rate=28_000.0),
            (Row.DAEMON, "todoku-daemon"): rates(28_000, 28_000, 28_000),
            (Row.PUBLISH, "todoku"): rates(1_000),
            (Row.PUBLISH, "pgqueuer"): rates(2_000),
            (Row.HANDLERS, "todoku"): rates(17_000),
            (Row.LATENCY, "todoku"): [Figures({}, (1.0, 2.0, 3.0)), Figures({}, (2.0, 2.0, 90.0))],
            (Row.LATENCY, "oban"): [Figures({}, (4.0, 4.0, 5.0))],
            (Row.KILL, "todoku"): [Figures({"seconds": 3.0})],
            (Row.KILL, "todoku-daemon"): [Figures({"seconds": 1.0})],
            (Row.KILL, "oban"): [Figures({"seconds": 30.0}, notes=("not within 30 s",))],
            (Row.SNAPSHOT, "todoku"): rates(19_000, without=20_000.0, share=0.95),
        },
        missing={"River": "go is not installed", "Oban for Python, drain": "oban fill failed: no | such <table>"},
        more=(Bar("ingest", 1.0, 2.0, "x"),),
    )  # fmt: skip


def line(run: Run, what: str, beside: str) -> Judged:
    (found,) = [one for one in judged(run) if one.what == what and one.beside == beside]
    return found


def test_a_median_has_the_spread_of_its_rounds() -> None:
    assert middle(sample(), Row.DRAIN, "todoku", "rate") == Middle(35_000, 30_000, 40_000)
    assert middle(sample(), Row.DRAIN, "oban", "rate") is None


def test_the_fill_of_a_drain_is_the_row_bulk() -> None:
    found = line(sample(), "bulk enqueue, jobs/s", "PgQueuer")
    assert (found.ours, found.theirs, found.ok) == (16_000, 28_000, False)


def test_who_is_far_behind_after_one_round_has_no_second_one_unless_a_bar_names_it() -> None:
    run = sample()
    found = run.found | {
        (Row.DRAIN, "todoku"): rates(90_000, bulk_rate=90_000.0),
        (Row.DRAIN, "graphile"): rates(30_000, bulk_rate=30_000.0),
        (Row.DRAIN, "pgqueuer"): rates(5_000, bulk_rate=5_000.0),
        (Row.DRAIN, "oban"): rates(9_000, bulk_rate=9_000.0),
        (Row.DRAIN, "river-default"): rates(2_000, bulk_rate=40_000.0),
        (Row.DRAIN, "celery"): rates(400, bulk_rate=400.0),
    }
    run = replace(run, found=found, peers=PEERS)
    assert contenders(run, Row.DRAIN) == {"todoku", "graphile", "pgqueuer", "river-default"}


def test_on_redis_a_peer_with_a_short_latency_has_every_round_and_leaves_postgresql_its_own_best() -> None:
    late = {
        "todoku": 90.0,
        "huey-redis": 1.0,
        "river": 9.0,
        "oban": 27.0,
        "pgqueuer": 99.0,
        "awa": 28.0,
        "dramatiq": 28.0,
    }
    found = {(Row.LATENCY, name): [Figures({}, (ms,))] for name, ms in late.items()}
    run = replace(sample(), found=found, peers=PEERS)
    assert contenders(run, Row.LATENCY) == {"todoku", "huey-redis", "river", "oban", "pgqueuer"}


def test_samples_are_pooled_over_the_rounds() -> None:
    assert percentile(sample(), "todoku", 0.5) == Middle(2.0, 2.0, 2.0)
    assert percentile(sample(), "todoku", 0.99) == Middle(90.0, 3.0, 90.0)


def test_a_bar_that_holds_and_one_that_is_short() -> None:
    drain = line(sample(), "drain, jobs/s", "PgQueuer")
    assert drain.ok
    assert drain.short_by == 0
    publish = line(sample(), "enqueue, a transaction each, jobs/s", "PgQueuer")
    assert (publish.ok, publish.short_by) == (False, 0.5)


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    assert line(sample(), "idle latency p50, ms", "Oban for Python").ok
    late = line(sample(), "idle latency p99, ms", "Oban for Python")
    assert (late.ok, late.ratio) == (False, 18.0)
    assert line(sample(), "recovery after kill -9, s", "2 s").ours == 1.0


def test_bars_of_itself() -> None:
    assert line(sample(), "drain through `todoku run`, jobs/s", "box.drain").ratio == pytest.approx(0.8)
    assert line(sample(), "10 ms handlers, 200 at once, jobs/s", "the ideal").ratio == pytest.approx(0.85)
    assert line(sample(), "held snapshot, 200,000 dead rows, jobs/s", "without").ok


def test_a_row_that_was_not_measured_has_no_bar() -> None:
    assert not list(judged(replace(sample(), found={})))


def test_losses_are_said_as_plainly_as_wins() -> None:
    said = losses(sample())
    assert "- Enqueue: 8 publishers, a transaction each: todoku 1,000; PgQueuer 2,000." in said
    assert not [one for one in said if one.startswith("- Drain: no-op")]
    assert "a peer ahead" in text(replace(sample(), found={}))


def test_what_was_passed_over_is_named_with_the_reason() -> None:
    assert "- River: go is not installed" in text(sample())
    assert "not within 30 s" in text(sample())


def test_the_document_says_who_has_one_round_only_if_others_have_more() -> None:
    said = "has no other round there, unless a bar names it"
    assert said in text(sample())
    assert said not in text(replace(sample(), rounds=1))


def test_the_document_has_versions_settings_and_other_bars() -> None:
    document = text(sample())
    assert "| PgQueuer | pgqueuer 1.6.0 | batch_size 1000" in document
    assert "| ingest | 1.00x | | | ≥ 2x | **short** |" in document
    assert "35,000 (30,000–40,000)" in document


def test_plots_are_well_formed_and_named_in_the_document(tmp_path: Path) -> None:
    document = write(sample(), tmp_path).read_text("utf-8")
    plots = sorted((tmp_path / "plots").glob("*.svg"))
    assert {plot.stem for plot in plots} >= {"drain", "bulk", "latency", "kill"}
    for plot in plots:
        assert ET.parse(plot).getroot().tag.endswith("svg")
        assert f"(plots/{plot.name})" in document
    drain = (tmp_path / "plots" / "drain.svg").read_text("utf-8")
    assert drain.index(">todoku<") < drain.index(">PgQueuer<")  # the best on top
