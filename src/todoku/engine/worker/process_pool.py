"""3d. Handlers in processes: each slot has a child process, which is killed when an attempt takes too long."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from todoku.core.failure import classify
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.context import Context
from todoku.engine.execute import Unstarted, interrupted_outcome
from todoku.engine.observability.message_headers import set_current_headers
from todoku.engine.observability.sentry import flush, is_initialised, with_transaction
from todoku.engine.registry import Target
from todoku.engine.worker.thread_pool import RunResult, call_handler
from todoku.store.claims import Transacted

_ENDING: Final = 10.0
"""Seconds an idle child has to exit before it is killed: Sentry and OpenTelemetry send their last events then."""


class ProcessRunner:
    """Runs handlers in a child process; starts a new one after the last was killed."""

    def __init__(self) -> None:
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None

    def run(self, context: Context, target: Target, seconds: float) -> RunResult:
        pipe = self._open_pipe()
        try:
            pipe.send((target.reference, target.name, context.claim, seconds))
            if not pipe.poll(seconds):
                self._kill()
                return interrupted_outcome("timeout", seconds), None
            reply, context.bound = pipe.recv()
            outcome, name = _decode_outcome(reply)
        except (EOFError, OSError) as error:
            code = self._kill()
            return Retry(reason="HANDLER_DIED", detail=f"its process exited with code {code}"), error
        return outcome, (_stand_in_exception(name) if name else None)

    def close(self) -> None:
        """Ends the idle child: it sees its pipe close, flushes Sentry and exits."""
        if self._child is not None and self._pipe is not None:
            self._pipe.close()
            self._child.join(_ENDING)
        self._kill()

    def _open_pipe(self) -> Connection:
        if self._child is None or not self._child.is_alive() or self._pipe is None:
            self._kill()
            context = multiprocessing.get_context("spawn")
            self._pipe, child_end = context.Pipe()
            self._child = context.Process(target=serve, args=(child_end,), name="todoku handler", daemon=True)
            self._child.start()
            child_end.close()
        return self._pipe

    def _kill(self) -> int | None:
        child, self._child = self._child, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if child is None:
            return None
        child.kill()
        child.join()
        return child.exitcode


def serve(pipe: Connection) -> None:
    """Runs in the child: one attempt after the other, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TODOKU_HANDLER_PROCESS"] = "1"
    while True:
        try:
            reference, name, claim, seconds = pipe.recv()
        except EOFError:
            flush()  # the process exits now
            return
        context = Context(claim, time.monotonic() + seconds)
        pipe.send((_encode_outcome(*_attempt(reference, name, context)), context.bound))


def _attempt(reference: str, name: str, context: Context) -> RunResult:
    set_current_headers(context.claim.headers)
    try:
        target = _find_target(reference, name)
    except Exception as error:  # noqa: BLE001 - a module that does not import is a failure like any other
        return classify(error), error
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


_Reply = tuple[str, tuple[Any, ...], str | None]
"""The name of an outcome, its fields, and the name of the exception behind it."""


def _encode_outcome(outcome: Outcome | Transacted | Unstarted, error: Exception | None) -> _Reply:
    """Turns an outcome into plain values: an application's exceptions do not always survive pickling."""
    name = type(error).__name__ if error is not None else None
    match outcome:
        case Transacted() | Unstarted():
            raise TypeError("a handler in a process has no transaction")
        case Done(result):
            return "Done", (result,), name
        case Retry():
            return "Retry", (outcome.after, outcome.reason, outcome.detail), name
        case Abort():
            return "Abort", (outcome.reason, outcome.detail), name
        case Snooze():
            return "Snooze", (outcome.for_,), name


def _decode_outcome(reply: _Reply) -> tuple[Outcome, str | None]:
    kind, fields, name = reply
    outcome: Outcome = {"Done": Done, "Retry": Retry, "Abort": Abort, "Snooze": Snooze}[kind](*fields)
    return outcome, name


def _stand_in_exception(name: str) -> Exception:
    """Creates a stand-in for an exception of that name, which was raised in the child."""
    raised: Exception = type(name, (Exception,), {})()
    return raised
