"""Rates that several processes count together, in memory that they share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from todoku.api.auth import RateBuckets
from todoku.api.shared_levels import SharedLevels, create_levels

FULL: Final = (5.0, 0.0)

HOLDER: Final = """
import sys
from todoku.api.shared_levels import SharedLevels

with SharedLevels(int(sys.argv[1]), "wrong").lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = create_levels()
    yield descriptor
    os.close(descriptor)


def buckets(memory: int, clock: list[float], kind: str = "wrong") -> RateBuckets:
    return RateBuckets(rate=1.0, size=3, clock=lambda: clock[0], shared=SharedLevels(memory, kind))


def test_permits_that_one_process_takes_are_gone_for_the_other(memory: int) -> None:
    clock = [1000.0]
    here, there = buckets(memory, clock), buckets(memory, clock)
    assert [here.take("a").ok, there.take("a").ok, here.take("a").ok] == [True] * 3
    assert [here.take("a").ok, there.take("a").ok, there.peek("a").ok] == [False] * 3
    assert there.take("b").ok
    clock[0] += 1
    assert [there.take("a").ok, here.take("a").ok] == [True, False]


def test_kinds_are_counted_apart(memory: int) -> None:
    clock = [0.0]
    wrong, requests = buckets(memory, clock), buckets(memory, clock, "requests")
    assert [wrong.take("a").left for _ in range(4)] == [2, 1, 0, 0]
    assert requests.take("a").left == 2


def test_more_names_than_places_forget_those_not_used_for_longest(memory: int) -> None:
    levels = SharedLevels(memory, "wrong")
    for n in range(40_000):
        levels[f"name {n}"] = (0.0, float(n))
    assert levels.get("name 0", FULL) == FULL, "as good as full"
    assert levels.get("name 39999", FULL) == (0.0, 39_999.0)


def test_a_process_that_was_stopped_while_it_counts_stops_no_other(memory: int) -> None:
    """Nor one that was killed: the kernel gives its lock back."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(memory)],
        pass_fds=(memory,), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"held\n"
        clock = [0.0]
        assert [buckets(memory, clock).take("a").ok for _ in range(4)] == [True] * 3 + [False]
        held.kill()
