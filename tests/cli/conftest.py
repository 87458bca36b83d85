"""What tests of the command line get."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Run, Shop
from tests.daemon.running import KEPT
from tests.support.world import World


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `python -m todoku …` in an empty directory; `environ` is added to a clean environment."""

    def todoku(
        *arguments: str, cwd: Path = tmp_path, stdin: str = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "todoku", *arguments],
            cwd=cwd,
            env=kept | environ,
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    return todoku


@pytest.fixture
def shop(run: Run, url: str) -> Iterator[Shop]:
    """A migrated database of each kind, and the program on it."""
    world = World("sqlite" if url.startswith("sqlite") else "postgres", url)
    world.store.migrate()

    def on_it(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, **{"TODOKU_DATABASE": url, "TODOKU_BY": "ada", **more})

    yield Shop(world, on_it)
    world.close()
