"""The settler waits for more outcomes only while nothing waits for these, and while more may come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from tests.support.crew import until
from tests.support.world import World
from todoku.core.message import Claimed
from todoku.core.outcome import DONE
from todoku.engine.execute import Finished
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.registry import Registry
from todoku.engine.settle import Settler
from todoku.engine.worker.held_deliveries import HeldDeliveries


class Settling:
    """A settler of a worker that holds four deliveries, the first of which it has settled just now."""

    def __init__(self, world: World) -> None:
        self.batches: list[list[int]] = []
        self.urgent: set[int] = set()
        self._looked = threading.Event()
        hold = HeldDeliveries()
        world.publish(4)
        self.claims = world.claim(world.worker())
        hold.add(self.claims)
        self.settler = Settler(
            world.store, Registry(), Telemetry(), hold, chance=lambda: 0.5, on_ended=self._note,
            on_settled=lambda: None, on_failure=lambda _error: None, may_settle_late=self._may_settle_late,
        )  # fmt: skip
        self.settler.start()
        self.end(0)
        self.until([[0]])
        self._looked.clear()

    def end(self, *places: int) -> None:
        for place in places:
            self.settler.put(Finished(self.claims[place], DONE, time.time(), time.time()))

    def end_one_that_waits(self) -> None:
        """The settler has seen the outcome of the second, and that it may wait."""
        self.end(1)
        assert self._looked.wait(60)

    def until(self, batches: list[list[int]]) -> None:
        until(lambda: len(self.batches) >= len(batches), what="the settle")
        assert self.batches == batches

    def _note(self, finished: Sequence[Finished]) -> None:
        self.batches.append([self.claims.index(one.claim) for one in finished])

    def _may_settle_late(self, claim: Claimed) -> bool:
        self._looked.set()
        return self.claims.index(claim) not in self.urgent


@pytest.fixture
def settling(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settling]:
    """What ends no wait is settled an hour later."""
    made = Settling(world)
    monkeypatch.setattr("todoku.engine.settle._DELAY", 3600.0)
    yield made
    assert made.settler.stop(grace=60)


def test_outcomes_that_may_wait_are_settled_together_once_all_that_is_held_has_ended(settling: Settling) -> None:
    settling.end_one_that_waits()
    settling.end(2, 3)
    settling.until([[0], [1, 2, 3]])


def test_an_outcome_that_may_not_wait_takes_those_before_it_along(settling: Settling) -> None:
    settling.urgent = {2}
    settling.end_one_that_waits()
    settling.end(2)
    settling.until([[0], [1, 2]])


def give_back(settling: Settling) -> None:
    settling.settler.give_back(settling.claims[3:])


def write(settling: Settling) -> None:
    settling.settler.later(lambda: None)


def stop(settling: Settling) -> None:
    assert settling.settler.stop(grace=60)


@pytest.mark.parametrize("other_work", [give_back, write, stop])
def test_outcomes_wait_while_there_is_nothing_else_to_do(
    settling: Settling, other_work: Callable[[Settling], None]
) -> None:
    settling.end_one_that_waits()
    other_work(settling)
    settling.until([[0], [1]])


def test_what_has_ended_is_counted_before_it_is_written(settling: Settling, world: World) -> None:
    """Claim: the next one is to know how fast attempts are while the database still writes the first of them."""
    lock = "begin immediate" if world.backend == "sqlite" else "lock table todoku_delivery in access exclusive mode"
    settling.urgent = {1}
    with closing(world.connect()) as other:
        other.execute(lock)
        settling.end(1)
        settling.until([[0], [1]])
        assert settling.settler.settled == 1
        other.rollback()
    until(lambda: settling.settler.settled == 2, what="the settle")
