"""A queue elsewhere that can be killed and started again."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.cli.conftest import commands, run  # noqa: F401 - fixtures: the program in an empty directory
from tests.client.queue_server import TOKEN
from tests.support.ports import free_port
from tests.support.world import World
from todoku.client import Queue, connect

PATIENT = 60.0
"""Seconds for an answer where that is not what is tested: the machine may be busy."""

ROOT = Path(__file__).resolve().parents[2]


class Elsewhere:
    """The process of a queue, and what it has accepted."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.file = home / "elsewhere.db"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.client.queue_server", str(self.port), str(self.file)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        """Run, and know nothing."""
        if self._process is None:
            self.start()
        self.tell("")
        self.bury()
        with closing(sqlite3.connect(self.file, timeout=60)) as db, db:
            db.execute("delete from accepted")

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def tell(self, how: str) -> None:
        """From now on every answer is so; "": as it should be."""
        _say(self.file.with_suffix(".answering"), how)

    def bury(self, *letters: dict[str, Any]) -> None:
        """These are its dead letters."""
        _say(self.file.with_suffix(".dead"), json.dumps(letters))

    def dead(self) -> list[dict[str, Any]]:
        return list(json.loads(self.file.with_suffix(".dead").read_text()))

    def accepted(self) -> list[tuple[str, dict[str, str], bytes]]:
        """(path, headers, body) of each message, in the order they were accepted."""
        if not self.file.exists():
            return []
        with closing(sqlite3.connect(self.file, timeout=60)) as db:
            found = db.execute("select path, headers, body from accepted order by number").fetchall()
        return [(path, json.loads(headers), body) for path, headers, body in found]

    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.accepted()]


def _say(file: Path, text: str) -> None:
    """At once: somebody who reads it meanwhile must not find it empty, which means something else."""
    new = file.with_suffix(f"{file.suffix}.new")
    new.write_text(text)
    new.replace(file)


@pytest.fixture(scope="module")
def one_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """The process of a queue, for all tests of a module: it takes longer to start than most of them to run."""
    elsewhere = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    yield elsewhere
    elsewhere.kill()


@pytest.fixture
def elsewhere(one_elsewhere: Elsewhere) -> Elsewhere:
    """A queue elsewhere, running, that knows nothing yet."""
    one_elsewhere.begin()
    return one_elsewhere


@pytest.fixture
def queues(tmp_path: Path, elsewhere: Elsewhere) -> Iterator[Any]:
    """Connect to it; what was connected is closed in the end."""
    opened: list[Queue] = []

    def made(**options: Any) -> Queue:
        options = {"spool": str(tmp_path / "spool.db"), "token": TOKEN, "within": PATIENT, **options}
        opened.append(connect(options.pop("to", elsewhere.url), **options))
        return opened[-1]

    yield made
    for queue in opened:
        queue.close()


@pytest.fixture
def box(world: World, url: str) -> Iterator[todoku.App]:
    """An App on each database."""
    box = todoku.App(url)
    yield box
    box.close()


def fell_back(queue: Queue) -> dict[str, float]:
    """What the queue's metrics say of the ways it took instead."""
    lines = queue.telemetry.render().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("queue_fallback_total{"))
    return {name.split('"')[1]: float(value) for name, value in found.items() if float(value)}
