"""The processes of the example: a broker, the API, and workers under todoku's supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START: Final = 60.0
STOP: Final = 60.0


class Running:
    """Processes in one directory, with one environment. Whoever starts them closes them."""

    def __init__(self, home: Path, environ: Mapping[str, str], *, logs: bool) -> None:
        self._home = home
        self._environ = {**os.environ, **environ}
        self._logs = logs
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> None:
        """`python -m …`. It logs to a file of its name, or to our standard error."""
        log = (self._home / f"{name}.log").open("ab") if self._logs else None
        self.processes.append(
            subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [sys.executable, "-m", *arguments],
                cwd=self._home,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches them only through us
            )
        )
        if log is not None:
            log.close()

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return all(process.poll() is None for process in self.processes)

    def until_served(self, url: str, wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until somebody answers there."""
        deadline = time.monotonic() + START
        while self.alive and wanted():
            try:
                urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own address
            except urllib.error.HTTPError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody answers at {url}") from None
                time.sleep(0.05)
            else:
                return

    def close(self) -> list[int]:
        """Ask all of them to stop, and return their exit codes; who does not is killed."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in self.processes]


@contextmanager
def running(home: Path, environ: Mapping[str, str], *, logs: bool) -> Iterator[Running]:
    """Processes that are not left behind."""
    processes = Running(home, environ, logs=logs)
    try:
        yield processes
    finally:
        processes.close()


def start_all(
    processes: Running,
    url: str,
    broker: str,
    worker: str,
    wanted: Callable[[], bool] = lambda: True,
    *,
    workers: int | None = None,
) -> None:
    """The broker and the API, which makes the tables; then the workers, whose daemon serves /metrics at `worker`."""
    processes.start("broker", "orders_example.broker.server")
    processes.start("server", "orders_example.server")
    processes.until_served(f"{url}/metrics", wanted)
    processes.until_served(broker, wanted)
    many = () if workers is None else ("--workers", str(workers))
    processes.start("worker", "todoku", "run", "--app", "orders_example.box:box", *many)
    processes.until_served(f"{worker}/metrics", wanted)
