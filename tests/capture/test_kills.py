"""Workers, the daemon, the source's server and todoku's are killed while the source changes: nothing lost, none twice.

TODOKU_TEST_CAPTURE_TRANSACTIONS and TODOKU_TEST_CAPTURE_KILLS make it longer: `make capture-kills`. The seed of the run
(TODOKU_TEST_SEED) repeats its transactions and the order of its kills.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.at_work import FAULTS, LATE
from tests.capture.scene import LONG, Scene, Writers, scene_of
from tests.conftest import SEED
from tests.daemon.running import until

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(7200)]

TRANSACTIONS = int(os.environ.get("TODOKU_TEST_CAPTURE_TRANSACTIONS", "800"))
KILLS = int(os.environ.get("TODOKU_TEST_CAPTURE_KILLS", "8"))
FULL = TRANSACTIONS >= 10_000


@pytest.fixture(params=["own", "another", "sqlite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """The source in todoku's own database, on another server, and with todoku on SQLite."""
    with scene_of(request.param, tmp_path, f"{SEED} {request.param}") as scene:
        yield scene


def play(scene: Scene, transactions: int, kills: int) -> int | None:
    """Writes while everything is killed in turn. Returns the newest message when the snapshot was first seen done."""
    scene.start()
    scene.until_begun()
    complete_at: int | None = None
    first: str | None = None
    with Writers(scene, transactions) as writers:
        progress, moved = writers.progress, 0
        for kill in range(kills):
            progress.allow(transactions * (kill + 2) // (kills + 1))
            if kill:  # the first one comes while the snapshot is read
                progress.reach(transactions * (kill + 1) // (kills + 1), LONG)
                if scene.chance.random() < 0.7:
                    scene.until_moved(moved)
            row = scene.row()
            if complete_at is None and row.state == "streaming":
                complete_at = scene.newest()
            first = first or row.state
            moved = row.lsn
            threading.Event().wait(scene.chance.random() * 0.3)
            scene.kill_one()
            scene.keep_up()
        writers.join()
        repeats = sum(thread.repeated for thread in writers.threads)
        rolled_back = sum(thread.rolled_back for thread in writers.threads)
    assert first == "snapshot", "the snapshot was over before the first kill: it needs more rows"
    print(f"writers: {repeats} transactions repeated after a crash, {rolled_back} rolled back", file=sys.stderr)
    return complete_at


def test_whatever_is_killed_every_change_is_stored_once_and_in_order(scene: Scene) -> None:
    """R16 to R19, I2, I10: beside the model, one by one; and what a destination got, by key."""
    scene.fill(rows=10_000 if FULL else 3_000, large=(1500, 3000, 12_000))
    complete_at = play(scene, TRANSACTIONS, KILLS)
    scene.finish()
    stored, delivered = scene.judge(complete_at)
    kills = ", ".join(f"{number} of {what}" for what, number in sorted(scene.killed.items()))
    print(f"seed {scene.seed}: killed {kills}", stored, delivered, sep="\n  ", file=sys.stderr)
    assert stored.problems == []
    assert delivered.problems == []
    assert sum(scene.killed.values()) >= KILLS * 0.9
    assert scene.rows("select count(*) from todoku_delivery where status = 'aborted'") == [(0,)]


@pytest.mark.parametrize("fault", ["drops a portion", *FAULTS])
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """A store that is wrong once, in one portion: the same comparison must say so."""
    with scene_of("own", tmp_path, f"{SEED} {fault}") as scene:
        scene.fault = fault
        scene.fill(rows=50, large=(50,))
        scene.start()
        until(lambda: scene.row().state == "streaming", "the snapshot is done")
        complete_at = scene.newest()
        with Writers(scene, 400) as writers:
            for allowed in range(0, 400, 4):  # not at once: so that there are many portions
                writers.progress.allow(allowed)
                writers.progress.reach(allowed, LONG)
            writers.join()
        scene.finish()
        stored, _ = scene.judge(complete_at)
        assert stored.problems, fault


def test_a_position_that_was_confirmed_too_early_stops_the_capture(tmp_path: Path) -> None:
    """Stored first, confirmed then: what is confirmed and not stored is lost, and the next reader must say so (R16)."""
    with scene_of("own", tmp_path, f"{SEED} early") as scene:
        scene.fault = LATE
        scene.fill(rows=50, large=(50,))
        scene.start()
        scene.until_begun()
        with Writers(scene, 1 << 20) as writers:
            writers.progress.allow(1 << 20)
            until(lambda: scene.row().state == "stopped", "the capture stops", seconds=LONG)
        assert scene.row().reason == "SLOT_AHEAD"
