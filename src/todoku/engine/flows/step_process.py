"""Steps in processes: a function runs in a process of the worker's pool, and its result is recorded by the run (R10).

Arguments and result travel as JSON, by the codecs of the step. The process is killed when the time of the step is over,
and when the run is cancelled or lost.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, Literal

from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Retry
from todoku.engine.encryption.secret_ref import SecretSources
from todoku.engine.flows.run import Run
from todoku.engine.flows.step_function import StepFunction, find_function, unwrap
from todoku.engine.observability.message_headers import set_current_headers
from todoku.engine.publish import Encoded
from todoku.engine.tracebacks import raised_in_process
from todoku.engine.worker.process_pool import DIED, NotInTime, ProcessDied, ProcessRunner

StepRun = Literal["auto", "thread", "process"]
"""Where the function of a step runs: an async one in the event loop and a plain one in a thread, or in a process."""

STEP_RUNS: Final[tuple[StepRun, ...]] = ("auto", "thread", "process")


def checked_run(function: Callable[..., Any], called: StepFunction, run: StepRun, *, transactional: bool) -> StepRun:
    """Returns where the step runs. InvalidSetting: it cannot run there."""
    if run not in STEP_RUNS:
        raise InvalidSetting(f"{called.name}: run cannot be {run!r}", hint=", ".join(STEP_RUNS))
    if run != "auto" and called.is_async:
        raise InvalidSetting(
            f"{called.name} is async, and run={run!r} is not", hint="leave run= out: it runs in the event loop"
        )
    if run == "process" and transactional:
        raise InvalidSetting(
            f"{called.name}: a transactional step runs in a thread of the worker",
            hint="leave run= out: its transaction belongs to one thread",
        )
    if run == "process":
        reference_of(function, called.name)
    return run


def reference_of(function: Callable[..., Any], name: str) -> str:
    """Returns `module:name` of a function. InvalidSetting: another process would not find it there."""
    reference = f"{function.__module__}:{getattr(function, '__qualname__', '<none>')}"
    if inspect.isfunction(function) and "<" not in reference:
        with suppress(ImportError, AttributeError):
            if unwrap(find_function(reference))[0] is function:
                return reference
    raise InvalidSetting(
        f"{name} cannot be found by another process", hint='run="process" needs a function at the top of a module'
    )


async def call_in_process(run: Run, name: str, reference: str, arguments: str, seconds: float | None) -> Encoded:
    """Calls the function of a step in a process. Returns its result as JSON; raises what it raised.

    Retry, as HANDLER_DIED: something else has killed the process. TimeoutError: it took longer than `seconds`.
    """
    errand = _Errand(reference, arguments, run.claim.headers, seconds)
    run.executor.step_pools.lend_process(errand)
    try:
        with run.at_cancel(errand.stop):
            text, error = await errand.ended
    except NotInTime:
        raise TimeoutError from None  # said by the caller
    except ProcessDied as died:
        run.refuse_stopped()
        raise Retry(reason=DIED, detail=f"{name}: {died}") from None
    finally:
        errand.stop()
    if error is not None:
        raise _revived(*error)
    return Encoded(text)


class _Errand:
    """One call of a function, for a thread of the pool of processes."""

    def __init__(self, reference: str, arguments: str, headers: str | None, seconds: float | None) -> None:
        self._asked = (reference, arguments, headers)
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[_Reply] = self._loop.create_future()
        self._lock = threading.Lock()
        self._runner: ProcessRunner | None = None
        self._is_taken = self._over = False

    def __call__(self, runner: ProcessRunner) -> None:
        """Called in a thread of the pool, with the process of its slot."""
        with self._lock:
            if self._over:
                return
            self._is_taken = True
        reply: _Reply | None = None
        error: Exception | None = None
        begun = partial(self._begin, runner)
        try:
            runner.ask(prepare_step, self._asked[:1], None, begun)  # its start does not count as time of the step
            reply = runner.ask(run_step, self._asked, self._seconds, begun)
        except NotInTime as late:
            error = late
            runner.renew()
        except Exception as raised:  # noqa: BLE001 - raised again where it is awaited
            error = raised
        with self._lock:
            self._runner = None  # from now on the process may work for others
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._hand_back, reply, error)

    def _begin(self, runner: ProcessRunner) -> None:
        with self._lock:
            if self._over:
                raise EOFError  # it was stopped while the process started
            self._runner = runner

    def _hand_back(self, reply: _Reply | None, error: Exception | None) -> None:
        if self.ended.done():
            return
        if reply is not None:
            self.ended.set_result(reply)
        else:
            self.ended.set_exception(error or EOFError())

    def stop(self) -> None:
        """Kills the process, if it works for this call. One that still waits for a process ends at once.

        Called in the event loop.
        """
        with self._lock:
            self._over = True
            if self._runner is not None:
                self._runner.interrupt()
            is_taken = self._is_taken
        if not is_taken:
            self._hand_back(None, ProcessDied(None))


# ------------------------------------------------------------
# In the process.

_Raised = tuple[bytes | None, str, str]
"""An exception: pickled, if it can be, its type, and its text."""

_Reply = tuple[str, _Raised | None]
"""What a step came to: its result as JSON, or what it raised."""


def prepare_step(reference: str) -> None:
    """Imports the function of a step. Called in the process; what fails here fails again when it is called."""
    with suppress(Exception):
        _known(reference)


def run_step(reference: str, arguments: str, headers: str | None) -> _Reply:
    """Calls the function of a step with its stored arguments. Called in the process."""
    set_current_headers(headers)
    try:
        function, called = _known(reference)
        args, kwargs = called.decode_arguments(arguments)
        return called.encode_result(function(*args, **kwargs)), None
    except Exception as error:  # noqa: BLE001 - whatever it raises is raised again in the run
        return "", (_pickled(error), type(error).__name__, str(error))
    finally:
        set_current_headers(None)


@lru_cache(maxsize=256)
def _known(reference: str) -> tuple[Callable[..., Any], StepFunction]:
    function, _, _ = unwrap(find_function(reference))
    return function, StepFunction(function, SecretSources(), transactional=False)


def _pickled(error: Exception) -> bytes | None:
    """Returns the exception pickled; None: it cannot be, or would not come back as what it is."""
    try:
        made = pickle.dumps(error)
        return made if type(pickle.loads(made)) is type(error) else None  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - an application's exceptions do not always survive pickling
        return None


def _revived(pickled: bytes | None, kind: str, text: str) -> Exception:
    """Returns the exception that the process sent; one of the same name and text if it could not be sent."""
    if pickled is not None:
        with suppress(Exception):
            found = pickle.loads(pickled)  # noqa: S301 - from a process that this one has started
            if isinstance(found, Exception):
                return found
    stand_in = raised_in_process(kind, None)
    stand_in.args = (text,)
    return stand_in
