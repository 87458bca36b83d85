"""The processes of a run: a post office, the API, some workers, and who kills those."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec


class Kill(msgspec.Struct, frozen=True):
    """A worker process that was killed, and when."""

    pid: int
    at: float


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """So many worker processes, one of them killed every so many seconds, at most so many in all (None: no end)."""

    workers: int
    every: float
    most: int | None = None


class Crowd:
    """Starts processes in a directory, with one environment, and ends every one of them at the end."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self._home = home
        self._environ = os.environ | environ
        self._all: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def start(self, module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A process, and the file it logs to."""
        log = self._home / f"{module.rpartition('.')[2]}.{len(self._all)}.log"
        file = log.open("wb")
        self._logs.append(file)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, *arguments],
            cwd=self._home, env=self._environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
        self._all.append(process)
        return process, log

    def close(self) -> None:
        """End whoever still lives."""
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait()
        for file in self._logs:
            file.close()


class Hunter(threading.Thread):
    """Kills the worker that has worked longest, and starts another in its place, again and again."""

    def __init__(self, crowd: Crowd, hunt: Hunt) -> None:
        super().__init__(daemon=True)
        self._crowd = crowd
        self._hunt = hunt
        self._over = threading.Event()
        self._alive = [crowd.start("users_example.worker") for _ in range(hunt.workers)]
        self.kills: list[Kill] = []

    def run(self) -> None:
        """Until it is told to stop. A worker that has not begun a job yet is not worth a kill."""
        while len(self.kills) != self._hunt.most and not self._over.wait(self._hunt.every):
            for place, (worker, log) in enumerate(self._alive):
                if b"Processing job" in log.read_bytes():
                    worker.send_signal(signal.SIGKILL)
                    worker.wait()
                    self.kills.append(Kill(worker.pid, time.time()))
                    del self._alive[place]
                    self._alive.append(self._crowd.start("users_example.worker"))
                    break

    def stop(self) -> list[int]:
        """No more kills; the workers left stop in good order. Returns their exit codes."""
        self._over.set()
        self.join()
        for worker, _ in self._alive:
            worker.terminate()
        return [worker.wait() for worker, _ in self._alive]


def post_users(port: int, number: int, *, at_once: int = 4) -> dict[str, int]:
    """Post users over HTTP, each until it is answered; returns the id of each by mail address."""
    over = threading.Event()

    def post(numbers: range) -> Iterator[tuple[str, int]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for n in numbers:
            if over.is_set():
                return
            address = f"user-{n}@users.example"
            props = {"hobby": "chess", "location": "Kyoto" if n % 2 else "Osaka", "score": n % 100}
            body = json.dumps({"name": f"User {n}", "email": address, "additional_props": props})
            connection.request("POST", "/users", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"POST /users answered {answer.status}: {said.decode()}")
            yield address, json.loads(said)["id"]
        connection.close()

    with ThreadPoolExecutor(at_once) as pool:
        try:
            parts = pool.map(lambda first: dict(post(range(first, number, at_once))), range(at_once))
            return {address: id for part in parts for address, id in part.items()}
        finally:
            over.set()  # whoever waits for us to end need not wait for the rest


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)


def listening(port: int) -> bool:
    """Whether somebody answers there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def crowd_in(home: Path, environ: dict[str, str]) -> Iterator[Crowd]:
    """A crowd that leaves nobody behind."""
    crowd = Crowd(home, environ)
    try:
        yield crowd
    finally:
        crowd.close()
