"""Only the testing kit's own program obeys TODOKU_FAILPOINTS; `todoku` ignores it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import todoku
from tests.daemon.running import ARMED, shop_at, until
from tests.support.migrated import copy_migrated

KILLED = {"TODOKU_FAILPOINTS": "migrate.before_commit=kill"}


def run(module: str, home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=home, env={**os.environ, **environ},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_program_ignores_the_variable(tmp_path: Path) -> None:
    done = run("todoku", tmp_path, "migrate", "--db", "sqlite:///shop.db", **KILLED)
    assert done.returncode == 0, done.stderr
    misspelt = run("todoku", tmp_path, "migrate", "--db", "sqlite:///shop.db", TODOKU_FAILPOINTS="nonsense")
    assert misspelt.returncode == 0, misspelt.stderr


def test_the_armed_program_obeys_it(tmp_path: Path) -> None:
    killed = run(ARMED, tmp_path, "migrate", "--db", "sqlite:///shop.db", **KILLED)
    assert killed.returncode == -signal.SIGKILL
    done = run(ARMED, tmp_path, "migrate", "--db", "sqlite:///shop.db", TODOKU_FAILPOINTS="")
    assert done.returncode == 0, done.stderr
    assert run("todoku", tmp_path, "stats", "--db", "sqlite:///shop.db").returncode == 0


@pytest.mark.parametrize("failpoints", ["settle=kill", "settle.after_commit=burn", "settle.after_commit"])
def test_a_failpoint_that_cannot_be_armed_is_one_line(tmp_path: Path, failpoints: str) -> None:
    refused = run(ARMED, tmp_path, "migrate", "--db", "sqlite:///shop.db", TODOKU_FAILPOINTS=failpoints)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith("todoku: ")
    assert "failpoint" in line
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(("module", "dies"), [("todoku", False), (ARMED, True)])
def test_so_do_the_worker_processes_of_a_daemon(tmp_path: Path, module: str, dies: bool) -> None:
    """The daemon itself never settles: only a worker process can die there."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    copy_migrated(url)
    with shop_at(tmp_path, url) as shop:
        daemon = shop.start(
            "run", "--app", "shop:box", "--workers", "1", module=module,
            TODOKU_FAILPOINTS="settle.before_commit=kill",
        )  # fmt: skip
        daemon.until_ready()
        shop.enqueue("quick", 1)
        if dies:
            until(lambda: daemon.events("WORKER_DIED"), "a worker to die at the failpoint")
        else:
            until(lambda: shop.counts()["succeeded"], "the job to succeed")
            assert daemon.stop() == 0
            assert daemon.events("WORKER_DIED") == []


def test_nothing_else_in_the_package_arms_failpoints() -> None:
    package = Path(todoku.__file__).parent
    arming = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module == "todoku.store.failpoint"
        and {alias.name for alias in node.names} - {"reach"}
    ]
    assert sorted(set(arming)) == ["testing/armed.py", "testing/crashes.py"]
