"""The nursery of a test process, and runs on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.run import Run
from tests.support.pack import Forks
from tests.support.world import World

PRELOADED = ("tests.crash.roles", "todoku.store.postgres.database", "todoku.store.sqlite.database", "uvloop")
"""What the nursery imports before it forks."""


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process that forks processes to be killed."""
    forks = Forks(PRELOADED)
    yield forks
    forks.close()


@pytest.fixture
def make_run(forks: Forks, tmp_path: Path, world: World) -> Iterator[Callable[..., Run]]:
    """Begin a run on the world's database; its processes end with the test."""
    runs: list[Run] = []

    def make(**options: Any) -> Run:
        runs.append(Run(forks, tmp_path, world, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.pack.end()
