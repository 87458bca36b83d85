"""A worker process as its supervisor sees it: started in its own process group, monitored, waited for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.daemon.pipe import HealthReport, Incarnation, MetricsReport, Notice, read_notices
from todoku.engine.worker.health import Health
from todoku.engine.worker.held_deliveries import create_shared_memory, may_have_started

QUICK_DEATH: Final = 2.0
"""Seconds. A worker process that ends sooner counts as a quick death."""

_LONGEST_PAUSE: Final = 30.0


class Child:
    """One worker process. Only the thread that handles the supervisor's events changes its state."""

    def __init__(self, number: int, command: Callable[[int, int], Sequence[str]], events: SimpleQueue[Any]) -> None:
        self.number = number
        self.started_at = self.last_notice_at = time.monotonic()
        self.incarnations: list[UUID] = []
        self.health: Health | None = None
        self.dump = b""
        self.was_killed = False
        self._started = create_shared_memory()
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own process group: Ctrl-C reaches only the supervisor, and a kill also reaches what handlers started.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                list(command(theirs.fileno(), self._started)),
                pass_fds=(theirs.fileno(), self._started),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self.pid = self._process.pid
        listener = threading.Thread(target=self._listen, args=(ours, events), daemon=True)
        listener.start()
        threading.Thread(target=self._wait, args=(listener, ours, events), daemon=True).start()

    def _listen(self, ours: socket.socket, events: SimpleQueue[Any]) -> None:
        for notice in read_notices(ours):
            events.put(NoticeReceived(self, notice))

    def _wait(self, listener: threading.Thread, ours: socket.socket, events: SimpleQueue[Any]) -> None:
        code = self._process.wait()
        self.kill()  # programs that its handlers started must not go on while another worker runs the same messages
        listener.join(1.0)  # read its last notices first: they name the lease to end
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        events.put(ChildDied(self, code))

    def record(self, notice: Notice) -> None:
        """Updates the state from a notice of the process."""
        self.last_notice_at = time.monotonic()
        match notice:
            case Incarnation(worker_id):
                self.incarnations.append(worker_id)
            case MetricsReport(dump):
                self.dump = dump
            case HealthReport(health):
                self.health = health

    @property
    def is_working(self) -> bool:
        """Whether it claims deliveries."""
        return self.health is not None and self.health.state == "running" and not self.was_killed

    def started_deliveries(self) -> frozenset[int]:
        """The deliveries it may have started. Call it once, after the process has died."""
        try:
            return may_have_started(self._started)
        finally:
            os.close(self._started)

    def drain(self) -> None:
        """Asks the process to finish its attempts and exit."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class NoticeReceived(msgspec.Struct, frozen=True):
    """A worker process sent a notice."""

    child: Child
    notice: Notice


class ChildDied(msgspec.Struct, frozen=True):
    """A worker process ended: with an exit code, or by a signal (negative)."""

    child: Child
    code: int


def describe_exit(code: int) -> str:
    """Describes an exit code in words."""
    if code >= 0:
        return f"exited with {code}"
    return f"was killed by {signal.Signals(-code).name}" if -code in signal.valid_signals() else f"was killed ({-code})"


def restart_delay(quick_deaths: int) -> float:
    """Seconds before the next start, after this many quick deaths in a row."""
    return 0.0 if quick_deaths <= 1 else min(_LONGEST_PAUSE, 0.5 * 2 ** (quick_deaths - 2))
