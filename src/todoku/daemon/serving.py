"""The further processes that serve HTTP, as the supervisor sees them. The first is the supervisor's own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Literal

from todoku.api.condition import ServingProcess
from todoku.daemon.children import ChildPlace, SupervisedProcess, describe_exit
from todoku.daemon.handover import receive_connections
from todoku.daemon.http_thread import HttpThread
from todoku.daemon.pipe import Notice, Serving
from todoku.engine.observability.log import Log

SILENT: Final = 30.0
"""Seconds. A serving process reports every second while its event loop turns; one silent for longer is replaced."""

DRAIN_SEC: Final = 2.0
"""Seconds that serving processes have to answer what they have accepted, before worker processes are drained."""

ServingCommand = Callable[[int, int, int, int], Sequence[str]]
"""The command of a serving process by its number and its descriptors: pipe, listening socket, hand-over."""


class ServingChild(SupervisedProcess):
    """One serving process. `shared`: descriptors that it inherits besides."""

    def __init__(
        self, number: int, command: Callable[[int], Sequence[str]], shared: Sequence[int], events: SimpleQueue[Any]
    ) -> None:
        self.state: Literal["starting", "serving"] = "starting"
        super().__init__(number, command, shared, events)

    def record(self, notice: Notice) -> None:
        """Updates the state from a notice of the process."""
        super().record(notice)
        if isinstance(notice, Serving):
            self.state = "serving"


class ServingProcesses:
    """Starts them, replaces those that die, and lets the first process accept in place of those that are not there.

    For the thread that handles the supervisor's events. `listening`: their sockets, which stay open here, so that
    connections wait and are not refused while a process is replaced. `shared`: descriptors that all of them inherit.
    """

    def __init__(
        self, http: HttpThread, listening: Sequence[socket.socket], command: ServingCommand, shared: Sequence[int]
    ) -> None:
        self._http, self._command, self._shared = http, command, tuple(shared)
        self._listening = dict(enumerate(listening, start=2))
        self.places = tuple(ChildPlace[ServingChild](number) for number in self._listening)

    @property
    def children(self) -> list[ServingChild]:
        """The serving processes that exist now, without the first."""
        return [child for place in self.places if (child := place.child) is not None]

    def condition(self) -> tuple[ServingProcess, ...]:
        """All serving processes, with the first."""
        first = ServingProcess(number=1, pid=os.getpid(), state="serving", restarts=0)
        return (first, *(_describe(place) for place in self.places))

    def cover_all(self) -> None:
        """Lets the first process accept the connections of all sockets."""
        for number, listening in self._listening.items():
            self._http.cover(number, listening)

    def check(self, now: float, events: SimpleQueue[Any]) -> None:
        """Starts the processes that are missing, and kills one whose event loop does not turn."""
        for place in self.places:
            if place.may_start(now):
                place.fill(self._start(place.number, events))
            child = place.child
            if child is not None and not child.was_killed and (silent := now - child.last_notice_at) > SILENT:
                Log(pid=child.pid, number=child.number).error("SERVING_SILENT", seconds=round(silent))
                child.was_killed = True
                child.kill()

    def leave_socket(self, number: int) -> None:
        """Leaves its socket to a process that accepts connections now."""
        self._http.uncover(number)

    def handle_death(self, child: ServingChild, code: int, *, is_draining: bool) -> None:
        """Covers for a process that has ended."""
        self._http.cover(child.number, self._listening[child.number])
        now = time.monotonic()
        place = next(place for place in self.places if place.child is child)
        pause = place.vacate(now)
        if not is_draining:
            Log(pid=child.pid, number=child.number).error(
                "SERVING_DIED", how=describe_exit(code), after_sec=round(now - child.started_at, 1), next_in_sec=pause
            )

    def drain(self) -> None:
        """Lets all processes answer what they have accepted and end. The first one accepts in their place."""
        self.cover_all()
        for child in self.children:
            child.drain()

    def _start(self, number: int, events: SimpleQueue[Any]) -> ServingChild:
        listening = self._listening[number].fileno()
        ours, theirs = socket.socketpair()
        with theirs:
            hand_over = theirs.fileno()
            shared = (listening, hand_over, *self._shared)
            child = ServingChild(number, lambda pipe: self._command(number, pipe, listening, hand_over), shared, events)
        receive_connections(ours, self._http.adopt)
        return child


def _describe(place: ChildPlace[ServingChild]) -> ServingProcess:
    child = place.child
    if child is None:
        return ServingProcess(number=place.number, pid=0, state="restarting", restarts=place.restarts)
    return ServingProcess(number=place.number, pid=child.pid, state=child.state, restarts=place.restarts)
