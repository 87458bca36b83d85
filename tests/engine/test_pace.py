"""MEND-4: how far ahead a pool claims, with random handler times. Slots, claims and the watch are simulated, by Pace's
own clock: what waits in a worker's memory starts soon, or is given back."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from todoku.engine.worker.pace import PATIENCE, Pace, group_ends

AHEAD = 0.5
WATCH = 0.1
MOST = 500

fast = st.floats(0.001, 0.3)
slow = st.floats(PATIENCE + 2 * WATCH, 5.0)
bursts = st.lists(
    st.tuples(st.integers(1, 300), fast) | st.tuples(st.integers(1, 20), slow), min_size=1, max_size=6
).map(lambda some: [seconds for number, seconds in some for _ in range(number)])
seeds = st.integers(0, 2**32)


class Simulated:
    """A pool of slots and a queue of attempts that take so many seconds each; time goes from one event to the next."""

    def __init__(self, slots: int, seconds: Iterable[float]) -> None:
        self.slots = slots
        self.pace = Pace(slots, MOST)
        self.queue = deque(seconds)
        self.ready: deque[tuple[float, float]] = deque()
        self.ends: list[tuple[float, float]] = []
        """(when it ends, when it began) of each that runs."""
        self.now = self.watched = 1000.0
        self.started: list[tuple[float, float, float]] = []
        """(when, how long it had waited here, how long it takes), as they started."""
        self.most_ahead = 0
        self._work()

    def step(self) -> None:
        """Go to the next event: an attempt ends, or the watch looks."""
        self.now = min([self.watched + WATCH, *(end for end, _ in self.ends[:1])])
        while self.ends and self.ends[0][0] <= self.now:
            end, began = heapq.heappop(self.ends)
            self.pace.done(group_ends([("job", began, end)], self.now)["job"])
        if self.now >= self.watched + WATCH:
            self.watched = self.now
            given_back = [one for one in self.ready if one[0] < self.now - PATIENCE]
            self.ready = deque(one for one in self.ready if one not in given_back)
            self.queue.extendleft(seconds for _, seconds in reversed(given_back))
        self._work()

    def run(self) -> None:
        """Until nothing is left to do."""
        while self.ends or self.queue or self.ready:
            self.step()

    def _work(self) -> None:
        self._start()
        while self.queue and (wanted := self._wanted()):
            self.ready += [(self.now, self.queue.popleft()) for _ in range(min(wanted, len(self.queue)))]
            self._start()

    def _wanted(self) -> int:
        return self.pace.wanted(occupied=len(self.ends), waiting=len(self.ready), now=self.now)

    def _start(self) -> None:
        while self.ready and len(self.ends) < self.slots:
            claimed, seconds = self.ready.popleft()
            self.started.append((self.now, self.now - claimed, seconds))
            heapq.heappush(self.ends, (self.now + seconds, self.now))
        self.most_ahead = max(self.most_ahead, len(self.ready))


@given(slots=st.integers(1, 64), seconds=st.lists(st.floats(AHEAD + 0.01, 5.0), max_size=300))
def test_MEND_4_slow_work_is_never_claimed_ahead(slots: int, seconds: list[float]) -> None:
    """No attempt waits here for a slot, however they fall together: three that ended at once were a rate once."""
    pool = Simulated(slots, seconds)
    pool.run()
    assert pool.most_ahead == 0
    assert len(pool.started) == len(seconds)


@given(slots=st.integers(1, 16), seconds=st.floats(0.002, 3.0), seed=seeds)
def test_MEND_4_what_is_claimed_ahead_starts_within_half_a_second(slots: int, seconds: float, seed: int) -> None:
    """While attempts take as long as those before them; at first the slots are out of step in any way."""
    first = [random.Random(seed + place).uniform(0.0, seconds) for place in range(slots)]
    pool = Simulated(slots, first + [seconds] * min(2000, int(slots * 3 / seconds) + 5 * slots))
    pool.run()
    assert max(waited for _, waited, _ in pool.started) <= AHEAD + 1e-6


@given(slots=st.integers(1, 16), seconds=bursts, mixed=st.booleans(), steps=st.integers(0, 1500), seed=seeds)
@settings(max_examples=200)
def test_MEND_4_an_urgent_one_has_no_more_slow_ones_in_front_than_slots(
    slots: int, seconds: list[float], mixed: bool, steps: int, seed: int
) -> None:
    """Whatever came before: bursts of fast ones and of slow ones, one after the other, or mixed."""
    if mixed:
        random.Random(seed).shuffle(seconds)
    pool = Simulated(slots, seconds)
    for _ in range(steps):
        if pool.queue or pool.ready:
            pool.step()
    urgent, published = 0.0, len(pool.started)
    pool.queue.appendleft(urgent)  # it comes first in the next claim; what was given back comes after it
    while not any(took == urgent for *_, took in pool.started):
        pool.step()
        if urgent in pool.queue:
            pool.queue.remove(urgent)
            pool.queue.appendleft(urgent)
    in_front = [took for *_, took in pool.started[published:] if took > PATIENCE]
    assert len(in_front) <= slots


@given(seconds=bursts, slots=st.integers(1, 16))
def test_MEND_4_what_has_waited_for_a_second_is_given_back(seconds: list[float], slots: int) -> None:
    """Attempts that were claimed behind fast ones and are slow themselves: another worker may be free."""
    pool = Simulated(slots, seconds)
    pool.run()
    assert max(waited for _, waited, _ in pool.started) <= PATIENCE + WATCH + 1e-6
    assert sorted(took for *_, took in pool.started) == sorted(seconds)


@given(slots=st.integers(1, 64))
def test_fast_work_is_claimed_ahead_in_batches_after_a_few_rounds(slots: int) -> None:
    """Attempts of a millisecond: half a second of them would be far more than a batch."""
    pace, now, held = Pace(slots, MOST), 1000.0, slots
    for _ in range(12):
        now += 0.003
        pace.done(group_ends([("job", float(slot), now) for slot in range(held)], now)["job"])
        held = pace.wanted(occupied=0, waiting=0, now=now)
    assert held == MOST


def test_a_pool_that_begins_to_work_claims_a_full_batch_once_each_slot_has_ended_two() -> None:
    """Half a second of attempts of 10 ms is far more than a batch, and that is known before half a second is over."""
    pace, now, sizes = Pace(100, MOST), 1000.0, []
    for _ in range(4):
        wanted = pace.wanted(occupied=0, waiting=0, now=now)
        sizes.append(wanted)
        now += 0.02
        pace.done(group_ends([("job", now - 0.01, now)] * min(wanted, 100), now)["job"])
    assert sizes == [100, 100, MOST, MOST]


def test_a_pool_that_may_hold_two_claims_asks_for_full_ones_while_one_of_them_waits() -> None:
    """Slots that end 100 in 10 ms start what waits while the next claim is on its way."""
    pace, now = Pace(100, MOST, claims_ahead=2), 1000.0
    for _ in range(30):
        now += 0.01
        pace.done(group_ends([("job", now - 0.01, now)] * 100, now)["job"])
    assert pace.wanted(occupied=100, waiting=MOST, now=now) == 0
    assert pace.wanted(occupied=100, waiting=MOST - 1, now=now) == MOST
    assert pace.wanted(occupied=0, waiting=0, now=now) == MOST


@given(slots=st.integers(2, 20))
def test_slots_that_share_one_processor_are_not_expected_to_end_more_than_they_did(slots: int) -> None:
    """Attempts of 5 ms that one event loop runs one after the other: a hundred in half a second, however many slots."""
    pace, now = Pace(slots, MOST), 1000.0
    for _ in range(200):
        now += 0.005
        pace.done(group_ends([("job", now - 0.005, now)], now)["job"])
    assert 100 - slots - 4 <= pace.ahead(now) <= 100 - slots + 4


def test_a_sender_takes_a_batch_for_each_slot_and_slow_ones_are_not_claimed_ahead() -> None:
    """Confirmations that take longer than half a second: a slot that is free takes twice what it took before."""
    pace, now, sizes = Pace(4, MOST, batch=100), 1000.0, []
    for _ in range(10):
        wanted = pace.wanted(occupied=0, waiting=0, now=now)
        sizes.append(wanted)
        now += 0.7
        pace.done(group_ends([("job", float(place % 4), now) for place in range(wanted)], now)["job"])
        assert pace.ahead(now) == 0
    assert sizes == [4, 8, 16, 32, 64, 128, 256, 400, 400, 400]


def test_a_settle_that_took_long_does_not_look_like_slow_or_fast_work() -> None:
    """Attempts count with the distances at which they ended, not with those at which they were settled."""
    quick, slow_ones = Pace(2, MOST), Pace(2, MOST)
    quick.done(group_ends([("job", 0.0, 1000.0 + place / 100) for place in range(20)], 1010.0)["job"])
    slow_ones.done(group_ends([("job", 0.0, 1000.0 + place / 2) for place in range(20)], 1010.0)["job"])
    assert (quick.ahead(1010.0), slow_ones.ahead(1010.0)) == (18, 0)
