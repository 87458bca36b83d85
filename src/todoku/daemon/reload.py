"""`todoku up --reload`: the daemon is a child process, which is started again when Python files of the App change.

All of it is replaced, not only its workers: the HTTP server resolves routes and sources by the same declarations.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from todoku.core.errors import CannotStart
from todoku.daemon.app_loader import find_app_name
from todoku.daemon.start import DaemonOptions, export_options
from todoku.engine.observability.log import Log, configure_logging

POLL: Final = 0.5
"""Seconds between two looks at the files."""

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

Snapshot = Mapping[str, tuple[int, int]]
"""The time of the last change and the size of each Python file, by its path."""


def up_reloading(options: DaemonOptions) -> int:
    """Runs `todoku up` and starts it again whenever the App's files change; returns its exit code once it is stopped.

    CannotStart: there is no App whose files could change, or systemd supervises this process.
    """
    export_options(options)
    if (name := find_app_name(options.app)) is None:
        raise CannotStart("--reload has nothing to watch without an App", hint="name yours: --app module:attribute")
    if os.environ.get("NOTIFY_SOCKET"):
        raise CannotStart("--reload is for development, and systemd runs this", hint="leave --reload out of the unit")
    configure_logging(options.log)
    return Reloader(_command(options), _roots(name)).run()


class Reloader:
    """Keeps a program running, and replaces it when files below `roots` change. One that failed waits for a change."""

    def __init__(self, command: list[str], roots: Iterable[Path]) -> None:
        self._command = command
        self._roots = tuple(roots)
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, which the program gets, too; returns its exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        seen = take_snapshot(self._roots)
        self._child = self._start()
        while True:
            time.sleep(POLL)
            code = None if self._child is None else self._child.poll()
            if self._is_stopping:
                return 0 if self._child is None else self._child.wait()
            if code is not None:
                if code == 0:
                    return 0
                self._child = None
                Log(exit_code=code).warning("WAITING_FOR_CHANGE")
            if (now := take_snapshot(self._roots)) != seen:
                before, seen = seen, self._wait_until_unchanged(now)
                self._replace(sorted({path for path, _ in before.items() ^ seen.items()}))

    def _replace(self, changed: list[str]) -> None:
        """Drains the program, as SIGTERM does, and starts it again."""
        Log(changed=changed[:3], files=len(changed)).info("RELOADING")
        if self._child is not None:
            self._child.terminate()
            self._child.wait()
        self._child = None if self._is_stopping else self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # Its own process group: Ctrl-C reaches only this process, which forwards it once.
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603 - our own module

    def _wait_until_unchanged(self, now: Snapshot) -> Snapshot:
        """Editors and checkouts write several files: returns the first snapshot that is still true a moment later."""
        while True:
            time.sleep(POLL / 5)
            if (later := take_snapshot(self._roots)) == now:
                return now
            now = later

    def _forward(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def take_snapshot(roots: Iterable[Path]) -> Snapshot:
    """Reads when each Python file below these directories was changed; hidden and installed ones are left out."""
    found: dict[str, tuple[int, int]] = {}
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not (name.startswith(".") or name in _SKIPPED)]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - hundreds of files, twice a second
                    try:
                        status = os.stat(path)  # noqa: PTH116 - as above
                    except OSError:  # removed meanwhile
                        continue
                    found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _roots(app: str) -> list[Path]:
    """The working directory and, if it is elsewhere, the directory of the App's module."""
    here = Path.cwd()
    top = app.partition(":")[0].partition(".")[0]
    spec = find_spec(top) if top and top not in sys.builtin_module_names else None
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
    is_elsewhere = origin is not None and not origin.is_relative_to(here) and "site-packages" not in origin.parts
    return [here, origin] if origin is not None and is_elsewhere else [here]


def _command(options: DaemonOptions) -> list[str]:
    """The command of the daemon itself. Its database and schema are in the environment, where no process list shows."""
    given = {
        "--app": options.app, "--host": options.host, "--port": options.port, "--workers": options.workers,
        "--serve-workers": options.serve_workers,
    }  # fmt: skip
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    open_word = ["--open"] if options.is_open else []
    return [sys.executable, "-m", "todoku", "up", *words, *open_word, "--log", options.log]
