"""A child process as its supervisor sees it: started in its own process group, monitored, waited for."""

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
from typing import Any, Final, Generic, TypeVar, assert_never
from uuid import UUID

import msgspec

from todoku.daemon.pipe import HealthReport, Incarnation, MetricsReport, Notice, Serving, read_notices
from todoku.engine.worker.health import Health
from todoku.engine.worker.held_deliveries import create_shared_memory, may_have_started

QUICK_DEATH: Final = 2.0
"""Seconds. A process that ends sooner counts as a quick death."""

_LONGEST_PAUSE: Final = 30.0


class SupervisedProcess:
    """One child process. Only the thread that handles the supervisor's events changes its state.

    `command` gets the descriptor of the child's end of the pipe; `shared` are further descriptors that it inherits.
    """

    def __init__(
        self, number: int, command: Callable[[int], Sequence[str]], shared: Sequence[int], events: SimpleQueue[Any]
    ) -> None:
        self.number = number
        self.started_at = self.last_notice_at = time.monotonic()
        self.was_killed = False
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own process group: Ctrl-C reaches only the supervisor, and a kill also reaches what handlers started.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                list(command(theirs.fileno())),
                pass_fds=(theirs.fileno(), *shared),
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

    def record(self, notice: Notice) -> None:  # noqa: ARG002 - for subclasses
        """Updates the state from a notice of the process."""
        self.last_notice_at = time.monotonic()

    def drain(self) -> None:
        """Asks the process to finish what it does and exit."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Child(SupervisedProcess):
    """One worker process. `command` gets the descriptors of its end of the pipe and of the shared memory."""

    def __init__(self, number: int, command: Callable[[int, int], Sequence[str]], events: SimpleQueue[Any]) -> None:
        self.incarnations: list[UUID] = []
        self.health: Health | None = None
        self._started = started = create_shared_memory()
        super().__init__(number, lambda pipe: command(pipe, started), (started,), events)

    def record(self, notice: Notice) -> None:
        """Updates the state from a notice of the process."""
        super().record(notice)
        match notice:
            case Incarnation(worker_id):
                self.incarnations.append(worker_id)
            case HealthReport(health):
                self.health = health
            case MetricsReport() | Serving():
                pass
            case _:
                assert_never(notice)

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


C = TypeVar("C", bound=SupervisedProcess)


class ChildPlace(Generic[C]):
    """One of the N places for a child process: the process in it, and when the next one may start."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: C | None = None
        self.starts = 0
        self._quick_deaths = 0
        self._next_start_at = 0.0

    def may_start(self, now: float) -> bool:
        """Whether a process has to be started."""
        return self.child is None and now >= self._next_start_at

    def fill(self, child: C) -> None:
        """Puts a process into the place that was just started."""
        self.child = child
        self.starts += 1

    def vacate(self, now: float) -> float:
        """Takes out the process, which has died. Returns the seconds before the next one may start."""
        if self.child is not None:
            self._quick_deaths = self._quick_deaths + 1 if now - self.child.started_at < QUICK_DEATH else 0
        self.child = None
        pause = restart_delay(self._quick_deaths)
        self._next_start_at = now + pause
        return pause

    @property
    def restarts(self) -> int:
        """How often a process in it was replaced."""
        return max(0, self.starts - 1)


class NoticeReceived(msgspec.Struct, frozen=True):
    """A child process sent a notice."""

    child: SupervisedProcess
    notice: Notice


class ChildDied(msgspec.Struct, frozen=True):
    """A child process ended: with an exit code, or by a signal (negative)."""

    child: SupervisedProcess
    code: int


def describe_exit(code: int) -> str:
    """Describes an exit code in words."""
    if code >= 0:
        return f"exited with {code}"
    return f"was killed by {signal.Signals(-code).name}" if -code in signal.valid_signals() else f"was killed ({-code})"


def restart_delay(quick_deaths: int) -> float:
    """Seconds before the next start, after this many quick deaths in a row."""
    return 0.0 if quick_deaths <= 1 else min(_LONGEST_PAUSE, 0.5 * 2 ** (quick_deaths - 2))
