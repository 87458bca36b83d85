"""3d. Handlers in processes: each slot has a child of its own, which is killed when an attempt takes too long."""

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
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze
from todoku.engine.context import Context
from todoku.engine.execute import Unstarted, interrupted
from todoku.engine.observability.sentry import flush, initialised, watched
from todoku.engine.registry import Target
from todoku.engine.worker.thread_pool import Ran, called
from todoku.store.claims import Transacted

_ENDING: Final = 10.0
"""Seconds an idle child has to end by itself before it is killed: Sentry and OpenTelemetry send what is left."""


class Apart:
    """Runs handlers in a child process, made anew whenever it had to be killed."""

    def __init__(self) -> None:
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None

    def run(self, context: Context, target: Target, seconds: float) -> Ran:
        pipe = self._opened()
        try:
            pipe.send((target.reference, target.name, context.claim, seconds))
            if not pipe.poll(seconds):
                self._kill()
                return interrupted("timeout", seconds), None
            outcome, name = _received(pipe.recv())
        except (EOFError, OSError) as error:
            code = self._kill()
            return Retry(reason="HANDLER_DIED", detail=f"its process ended with {code}"), error
        return outcome, (_named(name) if name else None)

    def close(self) -> None:
        """End the child. It has no attempt now: it sees the end of its pipe, sends what it has to tell, and leaves."""
        if self._child is not None and self._pipe is not None:
            self._pipe.close()
            self._child.join(_ENDING)
        self._kill()

    def _opened(self) -> Connection:
        if self._child is None or not self._child.is_alive() or self._pipe is None:
            self._kill()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=serve, args=(theirs,), name="todoku handler", daemon=True)
            self._child.start()
            theirs.close()
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
    """A child's life: one attempt after the other, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TODOKU_HANDLER_PROCESS"] = "1"
    while True:
        try:
            reference, name, claim, seconds = pipe.recv()
        except EOFError:
            flush()  # at the latest now: nothing of this process is left to do it later
            return
        pipe.send(_sent(*_attempt(reference, name, claim, seconds)))


def _attempt(reference: str, name: str, claim: Claimed, seconds: float) -> Ran:
    try:
        target = _found(reference, name)
    except Exception as error:  # noqa: BLE001 - a module that does not import is a failure like any other
        return classify(error), error
    context = Context(claim, time.monotonic() + seconds)
    return called(context, watched(target) if initialised() else target)


def _found(reference: str, name: str) -> Target:
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    target: Target = found.target
    if name not in (target.name, *found.aliases):
        raise LookupError(f"{reference} is {target.name}, not {name}")
    return target


Sent = tuple[str, tuple[Any, ...], str | None]
"""The name of an outcome, what it is made of, and the name of the exception behind it."""


def _sent(outcome: Outcome | Transacted | Unstarted, error: Exception | None) -> Sent:
    """An outcome as plain values: exceptions of people's own do not always survive pickling."""
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


def _received(reply: Sent) -> tuple[Outcome, str | None]:
    kind, fields, name = reply
    made: Outcome = {"Done": Done, "Retry": Retry, "Abort": Abort, "Snooze": Snooze}[kind](*fields)
    return made, name


def _named(name: str) -> Exception:
    """Stands for an exception that was raised in another process."""
    raised: Exception = type(name, (Exception,), {})()
    return raised
