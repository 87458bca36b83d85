"""The pipe from a child process to its supervisor: notices as JSON lines; nothing goes the other way.

No other process has the supervisor's end open, so end-of-file means to the child that the supervisor is gone.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import msgspec

from todoku.engine.worker.health import Health


class Incarnation(msgspec.Struct, frozen=True, tag="incarnation"):
    """A new lease, sent before anything is claimed under it: the one to end if this process dies."""

    worker_id: UUID


class HealthReport(msgspec.Struct, frozen=True, tag="report"):
    """The health of the worker."""

    health: Health


class MetricsReport(msgspec.Struct, frozen=True, tag="measured"):
    """The metrics of this process since its start."""

    dump: bytes


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """A serving process accepts connections."""


Notice = Incarnation | HealthReport | MetricsReport | Serving

_DECODER: msgspec.json.Decoder[Notice] = msgspec.json.Decoder(Incarnation | HealthReport | MetricsReport | Serving)


class ReportPipe:
    """The child's end. Any thread may send; without a supervisor, notices are dropped."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # programs that handlers start must not keep the pipe open
        self._lock = threading.Lock()

    def send(self, notice: Notice) -> None:
        """Sends one notice; returns when the operating system has taken it."""
        with self._lock, suppress(OSError):  # the supervisor is gone: `wait_until_alone` returns
            self._socket.sendall(msgspec.json.encode(notice) + b"\n")

    def wait_until_alone(self) -> None:
        """Blocks until the supervisor is gone."""
        with suppress(OSError):
            while self._socket.recv(1024):
                pass


def read_notices(ours: socket.socket) -> Iterator[Notice]:
    """The supervisor's end: yields notices until the pipe is closed. Drops the incomplete line of a killed process."""
    with ours.makefile("rb") as lines:
        try:
            for line in lines:
                if line.endswith(b"\n"):
                    yield _DECODER.decode(line)
        except OSError:
            return
