"""A worker is killed at every failpoint between claim and commit, on both sides of the commit (fault 8).

However it dies: nothing is lost (I1), nothing takes effect twice (I6), and what arrives twice was in the hands of the
one that died (I3, I13).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.run import Run
from tests.crash.scenarios import OPERATIONS, SIDES, kill_at

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = 3
KILLS = len(OPERATIONS) * len(SIDES) * ROUNDS
"""On each database."""

MESSAGES = 14
"""Two of each kind."""


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("side", SIDES)
def test_a_worker_killed_there_loses_nothing_and_doubles_nothing(
    make_run: Callable[..., Run], operation: str, side: str
) -> None:
    run = make_run()
    for number in range(ROUNDS):
        run.publish(number * 1000, MESSAGES)
        kill_at(run, operation, side)
    verdict = run.finish()
    assert verdict.problems == ()
    assert verdict.kills >= ROUNDS
    assert verdict.published == ROUNDS * MESSAGES
