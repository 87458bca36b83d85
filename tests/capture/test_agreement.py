"""What a capture stores of random transactions beside the model of the source, without a daemon and without kills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.scene import LONG, Scene, Writers, scene_of
from tests.conftest import SEED

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.fixture(params=["own", "another", "sqlite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(request.param, tmp_path, f"{SEED} {request.param}") as scene:
        yield scene


def test_random_transactions_are_stored_once_and_in_order(scene: Scene) -> None:
    """R16 to R19: the snapshot is read while four writers write, in several sittings."""
    scene.fill(rows=500, large=(1500, 11_000))
    capture = scene.box.captures["main"]
    capture.catch_up(timeout=LONG)
    complete_at = scene.newest()
    with Writers(scene, 600) as writers:
        for allowed in range(100, 700, 100):
            writers.progress.allow(allowed)
            reading = threading.Thread(target=lambda: capture.catch_up(timeout=LONG))
            reading.start()
            writers.progress.reach(min(allowed, 600), LONG)
            reading.join(LONG)
        writers.join()
    scene.change_last()
    capture.catch_up(timeout=LONG)
    stored, _ = scene.judge(complete_at)
    print(stored)
    assert stored.problems == []
    assert stored.counts["changes compared"] > 1000
