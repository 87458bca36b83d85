"""The processes of the example: the webhook's receiver, perhaps Kafka, and todoku's daemon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

START: Final = 120.0
STOP: Final = 60.0


class Running:
    """Processes in one directory, with one environment. Its owner closes them."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._home = home
        self._environ = {**os.environ, **environ}
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str, environ: Mapping[str, str] | None = None) -> None:
        """A process that logs to a file of its name. Ctrl-C reaches it only through us."""
        with (self._home / f"{name}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(  # noqa: S603 - our own programs
                    command,
                    cwd=self._home,
                    env=self._environ if environ is None else dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def start_python(self, name: str, *words: str) -> None:
        """`python -m …`."""
        self.start(name, sys.executable, "-m", *words)

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return all(process.poll() is None for process in self.processes)

    def until_listening(self, port: int, wanted: Callable[[], bool]) -> None:
        """Wait until a process takes connections on a port."""
        deadline = time.monotonic() + START
        while self.alive and wanted():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens on port {port}: see the .log files in {self._home}")
            time.sleep(0.1)

    def until_served(self, url: str, wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until a server answers there, with any status but 503."""
        deadline = time.monotonic() + START
        while self.alive and wanted():
            if answers(url):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from {url}: see the .log files in {self._home}")
            time.sleep(0.1)

    def close(self) -> Sequence[int]:
        """Ask all of them to stop, the last one first, and return their exit codes; one that does not is killed."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in self.processes]


def answers(url: str) -> bool:
    """Whether a server answers there, with any status but 503."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own address
    except urllib.error.HTTPError as error:
        return error.code != 503
    except OSError:
        return False
    return True


@contextmanager
def running(home: Path, environ: Mapping[str, str]) -> Iterator[Running]:
    """Processes that are not left behind."""
    processes = Running(home, environ)
    try:
        yield processes
    finally:
        processes.close()
