"""`make bench-flow` with todoku's own program and some dozens of runs. No time is asserted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import flow
from bench.servers import Postgres
from tests.support.postgres import VERSION

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[Postgres]:
    made = Postgres(VERSION, "-c shared_buffers=64MB -c fsync=off")
    yield made
    made.stop()


def test_runs_of_ten_steps_are_counted_and_compared(server: Postgres) -> None:
    (own,) = flow.here("todoku")
    rate = own.measure(server, 60)
    assert rate > 0
    bars = flow.bars_of({"todoku": rate, "dbos": rate / 4, "absurd": rate / 2})
    assert {bar.name: bar.ok for bar in bars}["flow_steps_vs_better_peer"]


@pytest.mark.slow
def test_an_idle_daemon_is_measured_alone_and_beside_runs_that_wait(
    server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = flow.waiting_costs(server, 50, watched=1.0)
    assert {bar.name for bar in bars} == {"flow_parked_daemon_percent_more", "flow_parked_server_percent_more"}
    assert "beside 50 runs that wait" in capsys.readouterr().out
