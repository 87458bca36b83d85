"""The command line, run in processes that are forked instead of started.

A nursery has imported what `python -m todoku` imports before it looks at its arguments, and the drivers; each command
is a process of its own that goes on from there. A fresh interpreter would import the same for a quarter of a second,
hundreds of times. What depends on how an interpreter starts is asked of one that does.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import msgspec

from tests.support.nursery import Start
from tests.support.pack import PATIENCE, Forks

PRELOADED = ("todoku.cli.main", "tests.support.command", "psycopg", "psycopg_pool")
_ORDER = "TODOKU_TEST_COMMAND"


class Command(msgspec.Struct, frozen=True):
    """`python -m module arguments…` in a directory and an environment; its input and output are files in `files`."""

    arguments: tuple[str, ...]
    cwd: str
    environ: dict[str, str]
    files: str
    module: str


def run_forked(
    forks: Forks,
    files: Path,
    arguments: tuple[str, ...],
    *,
    cwd: Path,
    environ: dict[str, str],
    stdin: str,
    module: str = "todoku",
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([python, "-m", module, *arguments])` would answer; a module with a `main`, or todoku."""
    files.mkdir()
    (files / "in").write_text(stdin, encoding="utf-8")
    order = msgspec.json.encode(Command(arguments, str(cwd), environ, str(files), module)).decode()
    pid = forks.start(Start("tests.support.command:live", {_ORDER: order}, str(files / "err")))
    deadline = time.monotonic() + PATIENCE
    while (died := forks.died(pid)) is None:
        if time.monotonic() > deadline:
            forks.send(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["todoku", *arguments], PATIENCE)
        time.sleep(0.005)
    told, complained = ((files / name).read_text(encoding="utf-8") for name in ("out", "err"))
    return subprocess.CompletedProcess(["todoku", *arguments], died.code, told, complained)


def run_fresh(
    arguments: tuple[str, ...], *, cwd: Path, environ: dict[str, str], stdin: str, module: str = "todoku"
) -> subprocess.CompletedProcess[str]:
    """The same by an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=cwd, env=environ, input=stdin,
        capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE, check=False,
    )  # fmt: skip


def live() -> int:
    """The life of a forked process: become what a fresh one would be, and do what it would."""
    order = msgspec.json.decode(os.environ[_ORDER], type=Command)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order.environ)
    os.chdir(order.cwd)
    files = Path(order.files)
    for name, flags, there in (("in", os.O_RDONLY, 0), ("out", os.O_WRONLY | os.O_CREAT, 1)):
        os.dup2(os.open(files / name, flags, 0o666), there)
    sys.argv = ["todoku", *order.arguments]
    sys.path[0] = order.cwd  # as `python -m` has it
    return _exit_code(order.module)


def _exit_code(module: str) -> int:
    """The program, and what an interpreter does when it ends."""
    program = import_module("todoku.cli.main" if module == "todoku" else module)
    code: object = 0
    try:
        program.main()
    except SystemExit as leaving:
        code = leaving.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1
