"""A process that has imported everything and opened nothing: it forks the processes that crash tests kill.

`python -m tests.support.nursery module…` imports the modules, then reads orders from its standard input and answers on
its standard output, one JSON object a line. A fork costs milliseconds where a fresh interpreter costs half a second.
When its input ends, it kills what it started and leaves.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Fork, and call `module:function` with this environment; its return value is the exit code."""

    call: str
    environ: dict[str, str]
    stderr: str


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send a signal, if the process has not ended: asked of its parent, no other process can be hit."""

    pid: int
    number: int


class Started(msgspec.Struct, frozen=True, tag="started"):
    pid: int


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """`alive`: it went to a living process."""

    alive: bool
    at: float


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A process ended: with an exit code, or by a signal (negative)."""

    pid: int
    code: int
    at: float


Order = Start | Send
Answer = Started | Sent | Died


class Nursery:
    """The parent of the processes."""

    def __init__(self) -> None:
        self._children: set[int] = set()
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a child hears it once it can leave in good order

    def run(self) -> None:
        decoder = msgspec.json.Decoder(Order)
        buffer = b""
        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if 0 in ready:
                read = os.read(0, 65536)
                if not read:
                    return self._end()
                *lines, buffer = (buffer + read).split(b"\n")
                for line in lines:
                    self._obey(decoder.decode(line))

    def _obey(self, order: Order) -> None:
        if isinstance(order, Start):
            pid = os.fork()
            if pid == 0:
                _live(order)
            self._children.add(pid)
            _say(Started(pid))
            return
        self._reap()
        alive = order.pid in self._children
        if alive:
            os.kill(order.pid, order.number)
        _say(Sent(alive, time.monotonic()))

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                _say(Died(pid, os.waitstatus_to_exitcode(status), time.monotonic()))

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _say(answer: Answer) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")


def _live(order: Start) -> None:
    """The life of a forked process; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until it has a way of its own to leave
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(order.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for here, there in ((nothing, 0), (nothing, 1), (log, 2)):
            os.dup2(here, there)
        os.environ.update(order.environ)
        code = _resolved(order.call)() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _resolved(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    Nursery().run()
