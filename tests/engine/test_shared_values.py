"""Values that many viewers share: computed by one of them, kept for a while, longer if they cost much."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from todoku.core.errors import StoreError
from todoku.engine.diagnostics.shared_values import SharedValues


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_value_is_kept_for_its_time() -> None:
    clock = Clock()
    values, made = SharedValues(monotonic=clock), []
    for at in (0.0, 0.9, 1.1):
        clock.now = at
        values.get("n", lambda: made.append(clock.now), kept=1.0)
    assert made == [0.0, 1.1]


def test_a_value_that_took_long_is_kept_longer() -> None:
    clock = Clock()
    values, made = SharedValues(monotonic=clock), []

    def slowly() -> int:
        clock.now += 0.008
        made.append(clock.now)
        return len(made)

    assert values.get("n", slowly, kept=0.5) == 1
    clock.now += 3.9
    assert values.get("n", slowly, kept=0.5) == 1
    clock.now += 0.2
    assert values.get("n", slowly, kept=0.5) == 2


def test_nobody_waits_twice_for_a_slow_value() -> None:
    """It is computed beside the viewers, who see the last one meanwhile; after a pause it is computed for them."""
    clock, gate, made = Clock(), threading.Event(), threading.Semaphore(0)
    values = SharedValues(monotonic=clock)

    def slowly() -> float:
        if clock.now > 1:
            gate.wait(30)
        clock.now += 0.1
        made.release()
        return clock.now

    assert values.get("n", slowly) == pytest.approx(0.1)
    clock.now = 11.0
    assert values.get("n", slowly) == pytest.approx(0.1)
    gate.set()
    assert made.acquire(timeout=30)
    assert made.acquire(timeout=30)
    clock.now = 60.0
    assert values.get("n", slowly) == pytest.approx(60.1)


def test_a_failure_beside_the_viewers_is_seen_by_the_next_one() -> None:
    clock = Clock()
    values = SharedValues(monotonic=clock)

    def slowly() -> int:
        clock.now += 0.1
        if clock.now > 1:
            raise StoreError("no", hint="none")
        return 1

    assert values.get("n", slowly) == 1
    before = set(threading.enumerate())
    clock.now = 11.0
    assert values.get("n", slowly) == 1
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    with pytest.raises(StoreError):
        values.get("n", slowly)


def test_many_viewers_cost_one_computation() -> None:
    values, made = SharedValues(), []
    together = threading.Barrier(8)

    def look() -> int:
        together.wait()
        return values.get("n", lambda: made.append(1) or len(made), kept=60)

    with ThreadPoolExecutor(8) as pool:
        assert [one.result() for one in [pool.submit(look) for _ in range(8)]] == [1] * 8
    assert made == [1]


def test_a_failure_is_not_kept_and_locks_out_nobody() -> None:
    values = SharedValues()

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        values.get("n", fail)
    assert values.get("n", lambda: 2) == 2


def test_after_an_act_everything_is_read_again() -> None:
    values = SharedValues()
    assert values.get("n", lambda: 1, kept=60) == 1
    values.clear()
    assert values.get("n", lambda: 2, kept=60) == 2
