"""The simulated day of `python -m bench.capacity`: it can be wrong in its costs, not in its arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.capacity import DAY, Costs, Plan, arrivals, fewest, main, simulate

COSTS = Costs(publish_us=20.0, run_us=40.0, wal_bytes=1_400.0, kept_bytes=450.0)


def test_the_curve_brings_a_days_messages_and_the_burst_beyond_them() -> None:
    quiet = sum(arrivals(second, DAY) for second in range(DAY) if not 43_200 <= second < 44_100)
    assert quiet == pytest.approx(DAY - sum(1.0 + 0.6 * 0.87 for _ in range(900)), rel=0.02)
    assert arrivals(43_200, DAY) == 3.0


def test_a_server_that_can_do_the_busiest_second_never_falls_behind() -> None:
    busiest = 3.0 * 1e9 / DAY * 60e-6  # cores
    assert simulate(1e9, COSTS, Plan(databases=1, cores=4, used=busiest / 4 * 1.01)).longest_wait == 0.0
    assert simulate(1e9, COSTS, Plan(databases=1, cores=4, used=busiest / 4 * 0.9)).longest_wait > 0.0


def test_the_smallest_number_of_databases_is_enough_and_one_less_is_not() -> None:
    plan = fewest(8e9, COSTS, cores=4, longest_wait=1.0)
    assert simulate(8e9, COSTS, plan).longest_wait <= 1.0
    assert simulate(8e9, COSTS, Plan(databases=plan.databases - 1, cores=4)).longest_wait > 1.0


def test_what_publishers_kept_during_an_outage_is_brought_and_run() -> None:
    found = simulate(1e9, COSTS, Plan(databases=1, cores=4))
    assert found.wait_after_outage > 0.0
    assert 0.0 < found.recovered_after < 3_600.0


def test_the_page_shows_what_it_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench.capacity"])
    main()
    page = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
    assert capsys.readouterr().out in page.read_text("utf-8")
