"""3d. Handlers in processes: each slot has a child process, which is killed when an attempt takes too long."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from todoku.core.failure import classify
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze, Traceback
from todoku.engine.context import Context
from todoku.engine.execute import Unstarted, handler_package, interrupted_outcome
from todoku.engine.observability.message_headers import set_current_headers
from todoku.engine.observability.sentry import flush, is_initialised, with_transaction
from todoku.engine.registry import Target
from todoku.engine.tracebacks import Which, format_dump, format_error, raised_in_process
from todoku.engine.worker.thread_pool import RunResult, call_handler
from todoku.store.claims import Transacted

STACK_SIGNAL: Final = getattr(signal, "SIGUSR2", None)
"""Makes a child write where its handler stands. Windows has no such signal: there a timeout has no stack."""

_ANSWER: Final = 0.5
_REST: Final = 0.02
"""Seconds to wait for the first, and for the next piece of a stack."""

_READY: Final = b"\n"
"""What a child writes when it can be asked for its stack."""

_ENDING: Final = 10.0
"""Seconds an idle child has to exit before it is killed: Sentry and OpenTelemetry send their last events then."""


DIED: Final = "HANDLER_DIED"
"""The reason of an attempt whose process was killed, or ended itself."""


_LAST_WORDS: Final = 1.0
"""Seconds that a child has to exit whose pipe has closed: killed before, it would not tell its own exit code."""


class NotInTime(Exception):
    """The child has not answered in time, and still runs."""


class ProcessDied(Exception):
    """The child has ended before it answered. `code`: its exit code; negative: the signal that has killed it."""

    def __init__(self, code: int | None) -> None:
        if code is None or code >= 0:
            super().__init__(f"its process exited with code {code}")
        else:
            super().__init__(f"its process was killed by signal {-code}, {signal.strsignal(-code) or 'of no name'}")


class ProcessRunner:
    """Runs handlers in a child process; starts a new one after the last was killed."""

    margin = 5.0  # the runner itself stops an attempt at its timeout

    def __init__(self, tracebacks: Which) -> None:
        self._tracebacks: Which = tracebacks
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._stacks: Connection | None = None
        self._answers = False
        self._lock = threading.Lock()
        """Held while the child is started, asked or killed: its process id and its pipes stay valid meanwhile."""

    def run(self, context: Context, target: Target, seconds: float) -> RunResult:
        asked = (target.reference, target.name, context.claim, seconds, self._tracebacks)
        try:
            reply, context.bound = self.ask(_run_attempt, asked, seconds)
        except NotInTime:
            stack = self._ask_stack(target)
            self._kill()
            return interrupted_outcome("timeout", target.name, seconds), None, stack
        except ProcessDied as died:
            return Retry(reason=DIED, detail=str(died)), raised_in_process("EOFError", None), None
        outcome, name, trace = _decode_outcome(reply)
        return outcome, (raised_in_process(name, trace) if name else None), None

    def ask(
        self, call: Callable[..., Any], arguments: tuple[Any, ...], seconds: float | None,
        begun: Callable[[], None] = lambda: None,
    ) -> Any:  # fmt: skip
        """Calls a function of todoku's own in the child, and returns its value.

        `begun`: called when the child is there, before it is asked. NotInTime: it still runs. ProcessDied: something
        has killed the child, or it has ended itself.
        """
        ends = None if seconds is None else time.monotonic() + seconds
        pipe = self._open_pipe()
        try:
            begun()
            pipe.send((call, arguments))
            if not pipe.poll(None if ends is None else max(0.0, ends - time.monotonic())):
                raise NotInTime
            return pipe.recv()
        except (EOFError, OSError):
            if self._child is not None:
                self._child.join(_LAST_WORDS)
            raise ProcessDied(self._kill()) from None

    def interrupt(self) -> None:
        """Kills the child that is being asked. May be called from another thread."""
        with self._lock:
            if self._child is not None:
                self._child.kill()

    def renew(self) -> None:
        """Ends a child that did not answer in time; the next call starts another."""
        self._kill()

    def stack(self, target: Target, _ident: int | None) -> str | None:
        """Returns where the handler stands now; None: its process still starts, or the system has no such signal."""
        trace = self._ask_stack(target, runs=True)
        return None if trace is None else trace.text

    def close(self) -> None:
        """Ends the idle child: it sees its pipe close, flushes Sentry and exits."""
        if self._child is not None and self._pipe is not None:
            self._pipe.close()
            self._child.join(_ENDING)
        self._kill()

    def _open_pipe(self) -> Connection:
        if self._child is not None and self._child.is_alive() and self._pipe is not None:
            return self._pipe
        self._kill()
        with self._lock:
            context = multiprocessing.get_context("spawn")
            self._pipe, child_end = context.Pipe()
            self._stacks, stacks_end = context.Pipe(duplex=False)
            ends = (child_end, stacks_end)
            self._child = context.Process(target=serve, args=ends, name="todoku handler", daemon=True)
            self._child.start()
            for end in ends:
                end.close()
        return self._pipe

    def _ask_stack(self, target: Target, *, runs: bool = False) -> Traceback | None:
        """Asks the child where its handler stands. faulthandler answers even if the handler never returns to Python."""
        with self._lock:
            child, stacks = self._child, self._stacks
            if self._tracebacks == "off" or STACK_SIGNAL is None or child is None or stacks is None:
                return None
            if child.pid is None or not self._takes_signals(stacks):
                return None
            with suppress(ProcessLookupError):
                os.kill(child.pid, STACK_SIGNAL)
            dump = _read_dump(stacks)
        return format_dump(dump.decode("utf-8", "replace"), handler_package(target), self._tracebacks, runs=runs)

    def _takes_signals(self, stacks: Connection) -> bool:
        """Whether the child has registered faulthandler, as its first byte says: before, the signal would kill it."""
        if not self._answers and stacks.poll(_ANSWER):
            self._answers = os.read(stacks.fileno(), len(_READY)) == _READY
        return self._answers

    def _kill(self) -> int | None:
        with self._lock:
            child, self._child = self._child, None
            for end in (self._pipe, self._stacks):
                if end is not None:
                    end.close()
            self._pipe = self._stacks = None
            self._answers = False
            if child is None:
                return None
            child.kill()
            child.join()
            return child.exitcode


def _read_dump(stacks: Connection) -> bytes:
    """Reads what faulthandler writes, until it pauses."""
    dump = b""
    while stacks.poll(_REST if dump else _ANSWER):
        if not (piece := os.read(stacks.fileno(), 1 << 16)):
            break  # the child ended by itself
        dump += piece
    return dump


def serve(pipe: Connection, stacks: Connection) -> None:
    """Runs in the child: one call after the other, until the parent closes the pipe."""
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, file=stacks.fileno(), all_threads=False)
        os.write(stacks.fileno(), _READY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TODOKU_HANDLER_PROCESS"] = "1"
    while True:
        try:
            call, arguments = pipe.recv()
        except EOFError:
            flush()  # the process exits now
            return
        pipe.send(call(*arguments))


def _run_attempt(
    reference: str, name: str, claim: Claimed, seconds: float, tracebacks: Which
) -> tuple[_Reply, dict[str, Any] | None]:
    """Runs in the child: one attempt. Returns its outcome, and what its handler bound to `ctx.log`."""
    context = Context(claim, time.monotonic() + seconds)
    outcome, error, _ = _attempt(reference, name, context)
    trace = None if error is None else format_error(error, reference.partition(".")[0], tracebacks)
    return _encode_outcome(outcome, error, trace), context.bound


def _attempt(reference: str, name: str, context: Context) -> RunResult:
    set_current_headers(context.claim.headers)
    try:
        target = _find_target(reference, name)
    except Exception as error:  # noqa: BLE001 - a module that does not import is a failure like any other
        return classify(error), error, None
    return call_handler(context, with_transaction(target) if is_initialised() else target)


def _find_target(reference: str, name: str) -> Target:
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    target: Target = found.target
    if name not in (target.name, *found.aliases):
        raise LookupError(f"{reference} is {target.name}, not {name}")
    return target


_Reply = tuple[str, tuple[Any, ...], str | None, Traceback | None]
"""The name of an outcome, its fields, the name of the exception behind it, and its traceback."""


def _encode_outcome(
    outcome: Outcome | Transacted | Unstarted, error: Exception | None, trace: Traceback | None
) -> _Reply:
    """Turns an outcome into plain values: an application's exceptions do not always survive pickling."""
    name = type(error).__name__ if error is not None else None
    match outcome:
        case Transacted() | Unstarted():
            raise TypeError("a handler in a process has no transaction")
        case Done(result):
            return "Done", (result,), name, trace
        case Retry():
            return "Retry", (outcome.after, outcome.reason, outcome.detail), name, trace
        case Abort():
            return "Abort", (outcome.reason, outcome.detail), name, trace
        case Snooze():
            return "Snooze", (outcome.for_,), name, trace


def _decode_outcome(reply: _Reply) -> tuple[Outcome, str | None, Traceback | None]:
    kind, fields, name, trace = reply
    outcome: Outcome = {"Done": Done, "Retry": Retry, "Abort": Abort, "Snooze": Snooze}[kind](*fields)
    return outcome, name, trace
