"""What tests of the command line get."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cli.program import Run, Shop
from tests.daemon.running import KEPT
from tests.support.command import PRELOADED, run_forked, run_fresh
from tests.support.migrated import copy_migrated
from tests.support.pack import Forks
from tests.support.world import World


@pytest.fixture(scope="session")
def commands() -> Iterator[Forks]:
    """A process that forks commands."""
    forks = Forks(PRELOADED)
    yield forks
    forks.close()


@pytest.fixture
def run(commands: Forks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `todoku …` in an empty directory; `environ` is added to a clean environment."""
    files, number = tmp_path_factory.mktemp("commands"), count()

    def todoku(
        *arguments: str, cwd: Path = tmp_path, stdin: str = "", module: str = "todoku", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        here = files / str(next(number))
        done = (
            run_fresh(arguments, cwd=cwd, environ=kept | environ, stdin=stdin, module=module)
            if any(name.startswith("PYTHON") for name in environ)  # meant for the interpreter
            else run_forked(commands, here, arguments, cwd=cwd, environ=kept | environ, stdin=stdin, module=module)
        )
        assert not re.search("^Traceback", done.stderr, re.MULTILINE), done.stderr
        return done

    return todoku


@pytest.fixture
def shop(run: Run, url: str) -> Iterator[Shop]:
    """A migrated database of each kind, and the program on it."""
    if url.startswith("sqlite"):
        copy_migrated(url)
    world = World("sqlite" if url.startswith("sqlite") else "postgres", url)
    world.store.migrate()

    def on_it(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, **{"TODOKU_DATABASE": url, "TODOKU_BY": "ada", **more})

    yield Shop(world, on_it)
    world.close()
