"""A peer's program, from the frame's side: roles that end, and worker processes that run until they are stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from bench.peers.peer import ROOT, Installed, Peer, Row
from bench.servers import peak_memory, processor_time

PUBLISHERS = 8
PATIENCE_SEC = 300.0
READY_SEC = 90.0


class Failed(Exception):
    """A peer's program did not do what it was asked; the message is for people."""


class Program:
    """The program of a peer, on one database, for one row."""

    def __init__(self, peer: Peer, installed: Installed, url: str, row: Row) -> None:
        self.peer, self.url = peer, url
        self._command = installed.command
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TODOKU_", "BENCH_"))}
        self.environ = kept | {
            "PYTHONPATH": os.pathsep.join(path for path in dict.fromkeys(paths) if path),
            "BENCH_URL": url, "BENCH_ROW": str(row), "BENCH_PROCESSES": str(peer.processes),
            "BENCH_PUBLISHERS": str(PUBLISHERS), "BENCH_HANDLER_MS": "0", "BENCH_SLOTS": "200", **peer.environ,
        }  # fmt: skip

    def do(self, role: str, *numbers: int, **environ: str) -> list[dict[str, Any]]:
        """Run a role to its end; what it printed."""
        name = f"{self.peer.name} {role}"
        with subprocess.Popen(
            [*self._command, role, *map(str, numbers)], env=self.environ | environ, cwd=ROOT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=PATIENCE_SEC)
            except subprocess.TimeoutExpired as error:
                end_session(process.pid)
                raise Failed(f"{name} did not end within {PATIENCE_SEC:.0f} s") from error
            except BaseException:
                end_session(process.pid)
                raise
        if process.returncode != 0:
            raise Failed(f"{name} failed: {last_words(err)}")
        return documents(out.splitlines())

    def workers(self, number: int, **environ: str) -> Workers:
        """Worker processes that are connected and wait; to be used as a context."""
        return Workers([Worker(self.peer, self._command, self.environ | environ) for _ in range(number)])


class Worker:
    """One worker process. Its lines are read by a thread."""

    def __init__(self, peer: Peer, command: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.name = peer.name
        self.is_ready = False
        self.done = self.warmed = 0
        self.last = 0.0
        self.starts: dict[int, float] = {}
        self._words = ""
        self._ready, self._over = threading.Event(), threading.Event()
        self._err: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [*command, "work"], env=dict(environ), cwd=ROOT, text=True, bufsize=1, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._err, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for said in documents([line]):
                if "start" in said:
                    self.starts.setdefault(int(said["n"]), float(said["start"]))
                self.done = max(self.done, int(said.get("done", 0)))
                self.last = max(self.last, float(said.get("last") or 0.0))
                if said.get("ready"):
                    self.is_ready = True
                    self.warmed = int(said.get("warmed", 0))
                    self._ready.set()
        self._over.set()
        self._ready.set()  # it has ended: there is nothing to wait for

    def until_ready(self) -> None:
        self._ready.wait(READY_SEC)
        if not self.is_ready:
            self.end()  # what it wrote is whole afterwards
            raise Failed(f"{self.name} work did not become ready: {self.words()}")

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()

    def words(self) -> str:
        """The last that it wrote to stderr."""
        if not self._err.closed:
            self._err.seek(0)
            self._words = last_words(self._err.read())
        return self._words

    def stop(self) -> None:
        """Ask it to end; its last line has been read afterwards."""
        self.tell("stop")
        self._over.wait(20)
        self.end()

    def end(self) -> None:
        """Kill it and what it started."""
        end_session(self.process.pid)
        self.process.wait(20)
        self._reader.join(20)
        self.words()
        self._err.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Workers:
    """Worker processes of one measurement."""

    def __init__(self, all_of_them: list[Worker]) -> None:
        self.each = all_of_them

    def __enter__(self) -> Workers:
        try:
            for worker in self.each:
                worker.until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.each:
            worker.end()

    def go(self) -> float:
        """Let all begin; the moment."""
        at = time.monotonic()
        for worker in self.each:
            worker.tell("go")
        return at

    def stop(self) -> None:
        for worker in self.each:
            worker.stop()

    @property
    def done(self) -> int:
        return sum(worker.done for worker in self.each)

    @property
    def warmed(self) -> int:
        return sum(worker.warmed for worker in self.each)

    @property
    def last(self) -> float:
        return max(worker.last for worker in self.each)

    def check(self) -> None:
        """An error if one has ended."""
        for worker in self.each:
            if worker.process.poll() is not None:
                raise Failed(f"{worker.name} work ended by itself: {worker.words()}")

    def cpu(self) -> float:
        return sum(processor_time(worker.process.pid) for worker in self.each)

    def memory(self) -> int:
        """Bytes of the largest."""
        return max(peak_memory(worker.process.pid) for worker in self.each)


def documents(lines: list[str]) -> list[dict[str, Any]]:
    """The lines that are JSON objects: some libraries print of their own accord."""
    found = []
    for line in lines:
        if line.startswith("{"):
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def last_words(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or "it says nothing"


def end_session(leader: int) -> None:
    """Kill a process and everything in its session."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
