"""The numbers of the dashboard, as they are made of what was read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.world import World
from todoku.core.settings import Settings
from todoku.engine.diagnostics.shared_numbers import SharedNumbers, join_flows, rate_of, without_last
from todoku.engine.diagnostics.shared_values import SharedValues
from todoku.store.rates import FlowPoint, Flows, PlaceFlow

START = datetime(2026, 1, 2, tzinfo=UTC)


def flows(first: int, number: int, *places: PlaceFlow, exact: bool = True) -> Flows:
    points = tuple(FlowPoint(START + timedelta(minutes=first + n), 1, 1, 0, 0) for n in range(number))
    return Flows(60, points, places, exact)


def test_spans_are_joined_and_cut_to_the_last_ones() -> None:
    found = join_flows(
        flows(0, 3, PlaceFlow("q", "old", (1, 2, 3)), PlaceFlow("q", "both", (1, 1, 1))),
        flows(3, 2, PlaceFlow("q", "both", (5, 6)), PlaceFlow("q", "new", (7, 8)), exact=False),
        4,
    )
    assert [point.at.minute for point in found.points] == [1, 2, 3, 4]
    assert {place.destination: place.succeeded for place in found.places} == {
        "both": (1, 1, 5, 6), "new": (0, 0, 7, 8), "old": (2, 3, 0, 0),
    }  # fmt: skip
    assert not found.exact


def test_the_last_stretches_are_left_out() -> None:
    found = without_last(flows(0, 3, PlaceFlow("q", "old", (1, 2, 3))), 2)
    assert [point.at.minute for point in found.points] == [0]
    assert found.places == (PlaceFlow("q", "old", (1,)),)


def test_stretches_that_were_over_some_time_ago_are_not_read_again(world: World) -> None:
    """A drain makes millions of rows in an hour: they are read once, not at every look."""
    values = SharedValues()
    numbers = SharedNumbers(world.store, Settings(), values)
    ended = "update todoku_history set finished_at = finished_at - " + (
        "interval '10 minutes'" if world.backend == "postgres" else "600000000"
    )

    def seen() -> list[int]:
        values.clear()
        return [point.succeeded for point in numbers.flows("minute").points]

    settle(world, 3)
    world.sql(ended)
    before = seen()
    assert sum(before) == 3
    world.sql("delete from todoku_history")
    settle(world, 2)
    after = seen()
    assert sum(after) == 5, "the old ones are remembered, the new ones are seen"
    assert len(after) == 60
    numbers.forget()
    assert sum(seen()) == 2


def settle(world: World, number: int) -> None:
    world.publish(number)
    world.settle(world.claim(world.worker(), number))


def test_a_burst_is_sampled_also_when_it_is_over(world: World) -> None:
    """The rate is that of the moment of reading: the rows of a sample that is seconds old are no fewer a second."""
    values = SharedValues()
    numbers = SharedNumbers(world.store, Settings(), values)
    began = numbers.now()
    settle(world, 40)
    assert numbers.rates().ended == pytest.approx(2.0)
    world.sql("delete from todoku_history")
    assert numbers.rates().ended == pytest.approx(2.0), "as it was read"
    values.clear()
    assert numbers.rates().ended == 0.0
    assert numbers.highest_rate(began) == pytest.approx(2.0), "the stretch may have that many a second"
    assert numbers.highest_rate(numbers.now() + 1) == 0.0, "a later one has not"


@pytest.mark.parametrize(
    ("ends", "full", "rate"),
    [
        ([], False, 0.0),
        ([99.0, 90.0, 10.0], False, 0.1),
        ([99.0, 98.0, 97.0, 96.0], True, 1.0),  # there are more: their rate is that of the sample
        ([99.0, 70.0], True, 0.05),
    ],
)
def test_a_full_sample_tells_the_rate_of_its_own_time(ends: list[float], full: bool, rate: float) -> None:
    assert rate_of(ends, 100.0, full=full) == pytest.approx(rate)
