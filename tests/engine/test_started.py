"""What a dead process had started, read from memory that outlives it (H6)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support.world import World
from todoku.engine.worker.held_deliveries import StartedDeliveries, create_shared_memory, may_have_started
from todoku.engine.worker.lease import end_dead_lease

CHILD = """
import os, signal, sys
from todoku.engine.worker.held_deliveries import StartedDeliveries
started = StartedDeliveries(int(sys.argv[1]))
started.begin(7); started.end(7)
for delivery in range(100, 110):
    started.begin(delivery)
started.end(105)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_H6_a_killed_process_leaves_behind_what_it_had_started() -> None:
    memory = create_shared_memory()
    child = subprocess.run([sys.executable, "-c", CHILD, str(memory)], pass_fds=(memory,), check=False)
    assert child.returncode == -signal.SIGKILL
    assert may_have_started(memory) == {7, *range(100, 110)}
    os.close(memory)


def test_what_runs_for_long_is_not_forgotten_however_many_come_and_go() -> None:
    memory = create_shared_memory()
    started = StartedDeliveries(memory)
    started.begin(1)
    for delivery in range(2, 30_000):
        started.begin(delivery)
        started.end(delivery)
    found = may_have_started(memory)
    assert 1 in found
    assert 29_999 in found
    assert 2 not in found, "it was settled long ago"
    os.close(memory)


def test_H6_only_what_had_started_is_a_suspect(world: World) -> None:
    world.publish(5)
    worker = world.worker()
    claims = world.claim(worker)
    found = end_dead_lease(world.store, worker, {claims[0].id, claims[1].id}, max_lost=3)
    assert (found.workers, found.freed) == (1, 2)
    assert sorted((row.status, row.lost, row.attempts) for row in world.deliveries()) == [
        ("pending", 0, 0), ("pending", 0, 0), ("pending", 0, 0), ("pending", 1, 0), ("pending", 1, 0),
    ]  # fmt: skip
