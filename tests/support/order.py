"""The order of tests that run side by side."""

from __future__ import annotations

from collections import deque
from itertools import groupby

import pytest

_FREE = 0.15
"""The last part of a run has no slow tests: a worker would still be at one when the others have ended."""


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The slow tests evenly among the others: they wait for leases and for processes while the others compute.

    They come between the files, so that what the tests of a file share is made once. A group has an order of its own.
    """
    slow = deque(item for item in items if _is_slow(item))
    others = [item for item in items if not _is_slow(item)]
    number, spread = len(slow), list[pytest.Item]()
    for _, file in groupby(others, key=lambda item: item.path):
        spread.extend(file)
        passed = (len(spread) - (number - len(slow))) / (len(others) * (1 - _FREE))
        while slow and number - len(slow) < number * passed:
            spread.append(slow.popleft())
    return [*spread, *slow]


def _is_slow(item: pytest.Item) -> bool:
    marked = any(item.get_closest_marker(name) for name in ("slow", "crash"))
    return marked and item.get_closest_marker("xdist_group") is None
