"""The line between a worker process and its supervisor: JSON lines upwards, nothing downwards.

The supervisor's end is open in no other process, so a worker that reads end-of-file knows that it is alone.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import msgspec

from todoku.engine.worker.worker import Health


class Incarnation(msgspec.Struct, frozen=True, tag="incarnation"):
    """A new lease, said before anything is claimed under it: what to bury should this process die."""

    worker_id: UUID


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How the worker is."""

    health: Health


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """The metrics of this process, so far."""

    dump: bytes


Said = Incarnation | Report | Measured

_DECODER: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Incarnation | Report | Measured)


class Speaker:
    """The worker's end. Any thread may speak; nobody listening any more is not its problem."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # what a handler starts must not keep the line open
        self._lock = threading.Lock()

    def say(self, said: Said) -> None:
        """Send one line; returns when the system has it."""
        with self._lock, suppress(OSError):  # the supervisor is gone: `until_alone` says so
            self._socket.sendall(msgspec.json.encode(said) + b"\n")

    def until_alone(self) -> None:
        """Block until the supervisor is gone."""
        with suppress(OSError):
            while self._socket.recv(1024):
                pass


def heard(ours: socket.socket) -> Iterator[Said]:
    """The supervisor's end: what is said, until the line is closed. Half a line of a killed process is dropped."""
    with ours.makefile("rb") as lines:
        try:
            for line in lines:
                if line.endswith(b"\n"):
                    yield _DECODER.decode(line)
        except OSError:
            return
