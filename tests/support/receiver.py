"""The receiving side of the crash tests: its own log of what arrived, written before a handler returns.

One line a note, appended by one write: what a process noted before it was killed is there. Times are
`time.monotonic()`, which is the same clock in every process of a machine.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class Began(msgspec.Struct, frozen=True, tag="began", kw_only=True):
    """A handler was called. `epoch` and `worker` are None where a destination is not told them."""

    message: str
    destination: str
    attempt: int
    epoch: int | None
    worker: str | None
    pid: int
    at: float
    call: int
    """Pairs it with its Ended: unique within the process."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A handler is about to return, and how."""

    pid: int
    call: int
    outcome: str
    at: float


class Incarnated(msgspec.Struct, frozen=True, tag="incarnated"):
    """A worker process took a new worker id."""

    pid: int
    worker: str
    at: float


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """A publish returned: from now on nothing of it may be lost."""

    message: str
    destinations: tuple[str, ...]
    pid: int
    at: float
    key: str | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A publish raised."""

    error: str
    text: str
    pid: int
    at: float


Note = Began | Ended | Incarnated | Acknowledged | Refused


class Receiver:
    """Appends notes to a file. Opened anew in each process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._calls = itertools.count(1)

    def note(self, note: Note) -> None:
        """One write: whole, or not there."""
        os.write(self._file, msgspec.json.encode(note) + b"\n")

    @contextmanager
    def attempt(
        self, message: str, destination: str, attempt: int, *, epoch: int | None = None, worker: str | None = None
    ) -> Iterator[None]:
        """Note that an attempt began, and how it ended: `done`, or the name of what it raised."""
        pid, call = os.getpid(), next(self._calls)
        self.note(
            Began(
                message=message,
                destination=destination,
                attempt=attempt,
                epoch=epoch,
                worker=worker,
                pid=pid,
                at=time.monotonic(),
                call=call,
            )
        )
        try:
            yield
        except BaseException as error:
            self.note(Ended(pid, call, type(error).__name__, time.monotonic()))
            raise
        self.note(Ended(pid, call, "done", time.monotonic()))

    def acknowledged(self, message: str, destinations: tuple[str, ...], key: str | None = None) -> None:
        self.note(Acknowledged(message, destinations, os.getpid(), time.monotonic(), key))

    def refused(self, error: Exception) -> None:
        self.note(Refused(type(error).__name__, str(error), os.getpid(), time.monotonic()))

    def incarnated(self, worker: object) -> None:
        self.note(Incarnated(os.getpid(), str(worker), time.monotonic()))


class Notes:
    """Reads a log while it grows: each call goes on where the last one ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = msgspec.json.Decoder(Note)
        self.all: list[Note] = []

    def read(self) -> list[Note]:
        """Everything noted so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole = file.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.all += [self._decoder.decode(line) for line in whole.splitlines()]
        return self.all

    def workers_of(self, pid: int) -> list[str]:
        """The worker ids a process has had."""
        return [note.worker for note in self.read() if isinstance(note, Incarnated) and note.pid == pid]
