"""Lanes side by side: batches for an ordered destination, in which no key is twice; and the end of a destination."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.crew import Crew
from tests.support.world import World
from todoku.core.destination import Outgoing
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry
from todoku.engine.worker.send_batch import ParallelLanes


class Line:
    """A destination that notes its batches, and fails what it is told to, once."""

    name = "warehouse"

    def __init__(self, *failing: tuple[str, int], outcome: Outcome | None = None) -> None:
        self.batches: list[list[tuple[str | None, int, int]]] = []
        self._failing = set(failing)
        self._outcome = outcome or Retry(after=0, reason="PLANNED")
        self.closed = 0

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        seen = [(one.key, int(one.payload.split(b":")[1].rstrip(b"}")), one.attempt) for one in batch]
        self.batches.append(seen)
        return [self._judged(key or "", n) for key, n, _ in seen]

    def _judged(self, key: str, n: int) -> Outcome:
        if (key, n) in self._failing:
            self._failing.discard((key, n))
            return self._outcome
        return Done()

    async def aclose(self) -> None:
        self.closed += 1

    def of(self, key: str) -> list[int]:
        return [n for batch in self.batches for found, n, _ in batch if found == key]


def published(world: World, keys: int, each: int) -> None:
    for n in range(each):
        for key in range(keys):
            world.publish(ordered=True, key=f"key {key}", payload=lambda _, n=n: {"n": n})


def test_a_batch_has_the_next_message_of_many_keys_and_of_none_two(world: World, crew: Crew) -> None:
    """I10: what follows a message is sent when that has arrived, never together with it."""
    line = Line()
    crew.sends(line, batch=32)
    published(world, keys=6, each=5)
    assert crew.drain(concurrency=1) == 30
    assert all(len({key for key, _, _ in batch}) == len(batch) for batch in line.batches)
    assert max(len(batch) for batch in line.batches) > 1
    for key in range(6):
        assert line.of(f"key {key}") == list(range(5))


def test_a_failing_head_blocks_its_lane_and_no_other_and_its_followers_pay_nothing(world: World, crew: Crew) -> None:
    line = Line(("key 1", 1))
    crew.sends(line, batch=32)
    published(world, keys=3, each=4)
    crew.drain(concurrency=1)
    assert line.of("key 1") == [0, 1, 1, 2, 3]
    assert line.of("key 0") == line.of("key 2") == [0, 1, 2, 3]
    attempts = {(key, n): attempt for batch in line.batches for key, n, attempt in batch}
    assert [attempts["key 1", n] for n in range(4)] == [1, 2, 1, 1]
    assert world.deliveries() == []


def test_a_dead_letter_stops_its_lane_as_everywhere(world: World, crew: Crew) -> None:
    line = Line(("key 1", 1), outcome=Abort("REFUSED"))
    crew.sends(line, batch=32)
    published(world, keys=2, each=3)
    crew.drain(concurrency=1)
    assert line.of("key 0") == [0, 1, 2]
    assert line.of("key 1")[:2] == [0, 1]
    assert [found.reason for found in world.deliveries(status="aborted")] == ["REFUSED"]


def test_a_lane_that_failed_gives_back_what_followed() -> None:
    rows = [_claim(number) for number in range(6)]
    lanes = ParallelLanes((rows[0], rows[1], rows[2]))
    lanes.add((rows[3], rows[4]))
    lanes.add((rows[5],))
    assert lanes.heads() == [rows[0], rows[3], rows[5]]
    assert lanes.drop_stopped([False, True, True]) == [rows[1], rows[2]]
    assert lanes.heads() == [rows[4]]
    assert lanes.drop_stopped([True]) == []
    assert not lanes


def _claim(number: int) -> Claimed:
    return Claimed(**{name: number if name == "id" else None for name in Claimed.__struct_fields__})  # type: ignore[arg-type]


def test_a_destination_is_closed_when_its_worker_ends(world: World, crew: Crew) -> None:
    line = Line()
    crew.sends(line)
    world.publish(1, payload=lambda _: {"n": 1})
    crew.drain()
    assert line.closed == 1


def test_a_destination_that_cannot_close_does_not_keep_its_worker(world: World, crew: Crew) -> None:
    class Stubborn(Line):
        async def aclose(self) -> None:
            raise RuntimeError("not now")

    crew.sends(Stubborn())
    world.publish(1, payload=lambda _: {"n": 1})
    assert crew.drain() == 1
