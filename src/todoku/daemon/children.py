"""A worker process as its supervisor sees it: started in a group of its own, listened to, waited for."""

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

from todoku.daemon.pipe import Incarnation, Measured, Report, Said, heard
from todoku.engine.worker.started_deliveries import create_shared_memory, may_have_started
from todoku.engine.worker.worker import Health

AT_ONCE: Final = 2.0
"""A worker process that lives shorter than this died at once."""

_LONGEST_PAUSE: Final = 30.0


class Child:
    """One worker process. Its state is changed only by the thread that handles the supervisor's events."""

    def __init__(self, number: int, command: Callable[[int, int], Sequence[str]], events: SimpleQueue[Any]) -> None:
        self.number = number
        self.began = self.heard_at = time.monotonic()
        self.incarnations: list[UUID] = []
        self.health: Health | None = None
        self.dump = b""
        self.condemned = False
        self._started = create_shared_memory()
        ours, theirs = socket.socketpair()
        with theirs:
            # A group of its own: Ctrl-C reaches the supervisor alone, and a kill reaches what handlers started.
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
        for said in heard(ours):
            events.put(Heard(self, said))

    def _wait(self, listener: threading.Thread, ours: socket.socket, events: SimpleQueue[Any]) -> None:
        code = self._process.wait()
        self.kill()  # what its handlers started must not go on while somebody else runs the same messages again
        listener.join(1.0)  # its last words first: they name the lease to end
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        events.put(Died(self, code))

    def hear(self, said: Said) -> None:
        """Take note of what it said."""
        self.heard_at = time.monotonic()
        match said:
            case Incarnation(worker_id):
                self.incarnations.append(worker_id)
            case Measured(dump):
                self.dump = dump
            case Report(health):
                self.health = health

    @property
    def works(self) -> bool:
        """Whether it may take work."""
        return self.health is not None and self.health.state == "running" and not self.condemned

    def last_started(self) -> frozenset[int]:
        """Once it is dead: the deliveries it may have started. Asked once."""
        try:
            return may_have_started(self._started)
        finally:
            os.close(self._started)

    def drain(self) -> None:
        """Ask it to finish and leave."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything it started, now."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Heard(msgspec.Struct, frozen=True):
    """A worker process said something."""

    child: Child
    said: Said


class Died(msgspec.Struct, frozen=True):
    """A worker process ended: by itself with a code, or by a signal (negative)."""

    child: Child
    code: int


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with {code}"
    return f"was killed by {signal.Signals(-code).name}" if -code in signal.valid_signals() else f"was killed ({-code})"


def pause_before(quick_deaths: int) -> float:
    """How long to wait with the next start after so many deaths in a row that came at once."""
    return 0.0 if quick_deaths <= 1 else min(_LONGEST_PAUSE, 0.5 * 2 ** (quick_deaths - 2))
