"""Workers and publishers are killed at random under load; with a supervisor that ends leases, and without one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import test_failpoints
from tests.crash.run import Run
from tests.crash.scenarios import hunt
from tests.daemon.running import Daemon
from tests.support.checker import Fault
from tests.support.pack import ROOT, until
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SUPERVISED = 40
UNSUPERVISED = 12
UNDER_THE_DAEMON = 6


def test_a_run_kills_at_least_two_hundred_times() -> None:
    """On SQLite and on PostgreSQL; each of the tests counts its own."""
    each = test_failpoints.KILLS + SUPERVISED + UNSUPERVISED + UNDER_THE_DAEMON
    assert 2 * each >= 200


def test_nothing_is_lost_or_doubled_when_supervised_workers_are_killed_under_load(make_run: Callable[..., Run]) -> None:
    """I1, I3, I6, I13: their supervisor ends their leases at once."""
    run = make_run()
    hunt(run, SUPERVISED, workers=3, bury=run.bury)
    verdict = run.finish()
    assert verdict.problems == ()
    assert verdict.kills >= SUPERVISED
    assert verdict.duplicates > 0, "some were hit between the send and the settle"


def test_nothing_is_lost_or_doubled_when_workers_die_alone(make_run: Callable[..., Run]) -> None:
    """W-103: nobody ends their leases, which run out; the others reclaim what they held."""
    run = make_run()
    hunt(run, UNSUPERVISED, workers=3, bury=lambda _victim: None)
    verdict = run.finish()
    assert verdict.problems == ()
    assert verdict.kills >= UNSUPERVISED


@pytest.mark.parametrize("supervised", [True, False])
def test_nothing_is_lost_or_doubled_when_workers_that_claim_by_list_are_killed(
    make_run: Callable[..., Run], world: World, *, supervised: bool
) -> None:
    """I1, I3, I13: a list of a dead worker is written out, and what it names is freed. SQLite has no lists."""
    run = make_run()
    run.publish(0, 400)
    bury = run.bury if supervised else lambda _victim: None
    hunt(run, UNSUPERVISED, workers=3, bury=bury, first=1000, TODOKU_TEST_FEWEST="1")
    verdict = run.finish()
    assert verdict.problems == ()
    assert verdict.kills >= UNSUPERVISED
    if world.backend == "postgres":
        assert world.sql("select last_value from todoku_claim_list_id_seq")[0][0] > UNSUPERVISED
        assert world.sql("select count(*) from todoku_history where epoch = 0")[0][0] > 0


# ------------------------------------------------------------------------------------------ the real supervisor


def test_nothing_is_lost_or_doubled_when_the_workers_of_a_daemon_are_killed(
    make_run: Callable[..., Run], world: World, tmp_path: Path
) -> None:
    """`todoku run --workers 2`: it replaces them, ends their leases, and drains cleanly after all that."""
    run = make_run()
    daemon = daemon_of(run, world, tmp_path)
    try:
        publisher = run.publisher(0, TODOKU_TEST_PAUSE="0.02")
        killed: set[int] = set()
        for _ in range(UNDER_THE_DAEMON):
            pid = until(lambda: next(iter(busy(run, daemon) - killed), None), "a worker process at work")
            killed.add(pid)
            run.pack.faults.append(Fault("kill", pid, *ended(pid)))
        run.pack.drain(publisher)
        run.until_finished()
        assert daemon.stop() == 0
    finally:
        daemon.close()
    verdict = run.verdict(also=[tmp_path / f"err.{daemon.port}"], errors=frozenset({"WORKER_DIED"}))
    assert verdict.problems == ()
    assert verdict.kills == UNDER_THE_DAEMON
    assert verdict.settled_lines > 0
    assert len(daemon.events("WORKER_DIED")) == UNDER_THE_DAEMON


def daemon_of(run: Run, world: World, home: Path) -> Daemon:
    (home / "shop.py").write_text("from tests.crash.app import crash_app\nbox = crash_app()\n")
    daemon = Daemon(("run", "--app", "shop:box", "--workers", "2"), home, run.environ | {"PYTHONPATH": str(ROOT)})
    daemon.until_ready()
    return daemon


def busy(run: Run, daemon: Daemon) -> set[int]:
    """The worker processes in which attempts have begun."""
    return {worker["pid"] for worker in daemon.workers() if worker["pid"] and run.begun(worker["pid"])}


def ended(pid: int) -> tuple[float, float]:
    """Kill a process of somebody else's, and wait until it is gone; from when to when it was dying."""
    began = time.monotonic()  # before: what it held may run again before this process is next in turn
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} to be gone")
    return began, time.monotonic()
