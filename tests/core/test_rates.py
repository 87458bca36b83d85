"""Percentiles and the end of a backlog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core.rates import Eta, Percentiles, estimate_eta, percentiles


def test_percentiles_are_values_of_the_sample() -> None:
    assert percentiles(range(1, 101)) == Percentiles(50, 95, 99, 100)
    assert percentiles([7.0]) == Percentiles(7.0, 7.0, 7.0, 1)
    assert percentiles([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise_within_the_sample(durations: list[float]) -> None:
    found = percentiles(durations)
    assert found is not None
    assert min(durations) <= found.p50 <= found.p95 <= found.p99 <= max(durations)
    assert sum(one <= found.p95 for one in durations) >= 0.95 * len(durations)


@pytest.mark.parametrize(
    ("backlog", "ended", "arrived", "expected"),
    [
        (0, 0.0, 5.0, Eta("empty", 0.0)),
        (100, 10.0, 0.0, Eta("drains", 10.0)),
        (100, 10.0, 5.0, Eta("drains", 20.0)),
        (100, 5.0, 10.0, Eta("grows", None)),
        (100, 0.0, 0.0, Eta("stands", None)),
    ],
)
def test_a_backlog_ends_only_if_more_ends_than_arrives(
    backlog: int, ended: float, arrived: float, expected: Eta
) -> None:
    assert estimate_eta(backlog, ended=ended, arrived=arrived) == expected
