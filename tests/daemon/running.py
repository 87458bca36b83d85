"""A real `todoku up` or `todoku run`, its answers over HTTP, and a small App for it to run."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.ports import free_port
from todoku.app import App

T = TypeVar("T")
PATIENCE = 120.0
"""How long anything may take on a busy machine before a test gives up."""

ARMED = "todoku.testing.armed"
"""The program that obeys TODOKU_FAILPOINTS."""

KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TODOKU_LOCK_TIMEOUT_SEC")
"""What a program that a test starts has of the test's own environment."""

SHOP = """
import asyncio, os, pathlib, time
import todoku

box = todoku.App()
HERE = pathlib.Path(__file__).parent

def note(*words):
    with open(HERE / "ran", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def may_go():
    return (HERE / "go").exists()

@box.job
async def quick(n: int) -> None:
    note("quick", n, os.getpid())

@box.job
async def slow(n: int) -> None:
    note("slow begins", n)
    while not may_go():
        await asyncio.sleep(0.02)
    note("slow ends", n)

@box.job
async def blocking(n: int) -> None:
    note("blocking begins", n)
    while not may_go():
        time.sleep(0.02)
    note("blocking ends", n)

@box.job
async def deadly(n: int) -> None:
    note("deadly", n)
    os._exit(9)

def stride(n: int) -> int:
    return n

@box.workflow
async def walk(ctx: todoku.Flow, steps: int) -> None:
    for n in range(steps):
        await ctx.step(stride, n)
    note("walked", os.getpid())
    await ctx.wait("home")
"""


def until(condition: Callable[[], T | None], what: str, *, seconds: float = PATIENCE) -> T:
    """Poll until `condition` gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for: {what}"
        time.sleep(0.01)


def whole_lines(text: str) -> list[str]:
    """The lines of a file that somebody writes: what has no end yet is none."""
    return text[: text.rfind("\n") + 1].splitlines()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


class Daemon:
    """One running daemon."""

    def __init__(
        self, arguments: tuple[str, ...], home: Path, environ: dict[str, str], *, module: str = "todoku"
    ) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._out = (home / f"out.{self.port}").open("w+", encoding="utf-8")
        self._err = (home / f"err.{self.port}").open("w+", encoding="utf-8")
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=home,
            env=kept | {"TODOKU_PORT": str(self.port), "TODOKU_POLL_INTERVAL_SEC": "0.05"} | environ,
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
        )  # fmt: skip
        self._known_children: set[int] = set()

    # ------------------------------------------------------------------------------------------ looking

    @property
    def out(self) -> str:
        return (self.home / f"out.{self.port}").read_text("utf-8")

    @property
    def err(self) -> str:
        return (self.home / f"err.{self.port}").read_text("utf-8")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of that event."""
        lines = [json.loads(line) for line in whole_lines(self.err) if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def ask(self, path: str, **headers: str) -> tuple[int, Any]:
        """(status, body); (0, None) if nobody answers."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException):
            return 0, None
        return status, json.loads(body) if body.startswith(b"{") else body.decode()

    def workers(self) -> list[dict[str, Any]]:
        """The worker processes, as `/readyz?verbose` tells of them."""
        return self._told("workers")

    def serving(self) -> list[dict[str, Any]]:
        """The processes that serve HTTP, if there are several."""
        return self._told("serving")

    def _told(self, kind: str) -> list[dict[str, Any]]:
        _, body = self.ask("/readyz?verbose")
        if body is None:
            return []
        self._known_children |= {child["pid"] for child in (*body["workers"], *body["serving"]) if child["pid"]}
        return list(body[kind])

    def until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, f"it ended: {self.out}{self.err}"
            return self.ask("/readyz")[0] == 200

        until(ready, f"ready; it said {self.err[-2000:]}")
        self.workers()

    # ------------------------------------------------------------------------------------------- acting

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self, *, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        """A clean stop."""
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def close(self) -> None:
        """End it and what it started, by pid."""
        if self.process.poll() is None:
            with suppress(Exception):
                self.workers()
            self.process.kill()
            self.process.wait()
        for pid in self._known_children:
            if alive(pid) and b"todoku.daemon." in Path(f"/proc/{pid}/cmdline").read_bytes():
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        self._out.close()
        self._err.close()


class Shop:
    """An App in a directory, its database, and what its handlers noted."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url
        (home / "shop.py").write_text(SHOP)
        self._daemons: list[Daemon] = []
        self._box: App | None = None

    def start(self, *arguments: str, module: str = "todoku", **environ: str) -> Daemon:
        """`python -m module <arguments>` with this database; `--app` unless it is the demonstration's."""
        environ = {"TODOKU_DATABASE": self.url} | environ
        daemon = Daemon(arguments, self.home, environ, module=module)
        self._daemons.append(daemon)
        return daemon

    def run(self, *arguments: str, **environ: str) -> Daemon:
        """`todoku run --app shop:box …`, on a migrated database, and ready."""
        daemon = self.start("run", "--app", "shop:box", *arguments, **environ)
        daemon.until_ready()
        return daemon

    @property
    def box(self) -> App:
        """An App in this process that can enqueue the shop's jobs and look at the database."""
        if self._box is None:
            self._box = App(self.url)
            self._box.migrate()
            for name in ("quick", "slow", "blocking", "deadly"):
                self._box.job(name)(_stub)
        return self._box

    def enqueue(self, job: str, n: int = 0) -> None:
        self.box.jobs[job].enqueue(n)

    def noted(self, prefix: str = "") -> list[str]:
        file = self.home / "ran"
        lines = whole_lines(file.read_text()) if file.exists() else []
        return [line for line in lines if line.startswith(prefix)]

    def let_go(self) -> None:
        """Let slow and blocking handlers end."""
        (self.home / "go").touch()

    def counts(self) -> dict[str, int]:
        counts = self.box.store.statistics.counts()
        return {name: counts.of(name) for name in ("pending", "sending", "succeeded", "failed", "aborted")}

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.close()
        if self._box is not None:
            self._box.close()


def _stub(n: int) -> None:
    """The shape of the shop's jobs."""


@contextmanager
def shop_at(home: Path, url: str) -> Iterator[Shop]:
    shop = Shop(home, url)
    try:
        yield shop
    finally:
        shop.close()
