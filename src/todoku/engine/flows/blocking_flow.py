"""BlockingFlow: what the function of a plain workflow may do. Each call is that of Flow, in the run's event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, TypeVarTuple, overload

from todoku.core.backoff import Backoff
from todoku.core.outcome import Duration
from todoku.engine.context import Context
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.flow_thread import FlowThread
from todoku.engine.flows.step_process import StepRun
from todoku.engine.observability.log import Log

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


def _handed_over(
    call: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingFlow, P], R]:
    """Makes the blocking form of a call of Flow: its name, docstring and parameters, and what it returns if awaited."""

    @wraps(call)
    def blocking(self: BlockingFlow, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._hand_over(call, *args, **kwargs)

    del blocking.__dict__["__wrapped__"]  # who looks for coroutines must not find one
    blocking.__dict__["__signature__"] = inspect.signature(call)
    blocking.__qualname__ = f"BlockingFlow.{call.__name__}"
    blocking.__doc__ = (call.__doc__ or "").replace("await ", "")
    return blocking


class BlockingFlow(Context):
    """One run of a plain workflow, as its function sees it: `def fulfil(ctx: todoku.BlockingFlow, order_id: int)`.

    As `Flow`, for functions that are not async: each call blocks until it has its result. The function runs in a thread
    of its own, in which alone `ctx` may be called, so that there are no parallel branches but children. When the run
    parks, the call raises an exception that is no `Exception`: `finally` blocks run, and the thread ends.
    """

    __slots__ = ("_flow", "_thread")

    def __init__(self, flow: Flow, thread: FlowThread) -> None:
        super().__init__(flow.claim, flow.deadline)
        self._flow = flow
        self._thread = thread

    @property
    def log(self) -> Log:
        """As of any attempt: see `Context.log`."""
        return self._flow.log

    def cancelled(self) -> bool:
        """Whether this run was cancelled: its next call of `ctx` ends it."""
        return self._flow.cancelled()

    def _hand_over(
        self, call: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Makes a call of Flow in the run's event loop."""
        try:
            return self._thread.call(lambda: call(self._flow, *args, **kwargs))
        finally:
            self.claim, self._ends = self._flow.claim, self._flow.deadline  # a stored step is progress (R6, R8)

    @overload
    def step(
        self, function: Callable[[Any, *Ts], R], /, *args: *Ts, transactional: Literal[True],
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,
    ) -> R: ...  # fmt: skip
    @overload
    def step(
        self, function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts,
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,
    ) -> R: ...  # fmt: skip
    @overload
    def step(
        self, function: Callable[[*Ts], R], /, *args: *Ts, run: StepRun = "auto",
        undo: Callable[..., Any] | None = None, key: str | None = None, max_attempts: int | None = None,
        backoff: Backoff | None = None, timeout: Duration | None = None,
    ) -> R: ...  # fmt: skip
    def step(  # type: ignore[misc]  # the arguments of the function, then options by name
        self, function: Callable[..., Any], /, *args: Any, **options: Any
    ) -> Any:
        """Calls a function, async or not, once: its result is stored, and returned whenever the run comes here again.

        The options are those of `Flow.step`.
        """
        return self._hand_over(Flow.step, function, *args, **options)

    sleep = _handed_over(Flow.sleep)
    wait = _handed_over(Flow.wait)
    gather = _handed_over(Flow.gather)
    race = _handed_over(Flow.race)
    publish = _handed_over(Flow.publish)
    restart = _handed_over(Flow.restart)
    now = _handed_over(Flow.now)
    random = _handed_over(Flow.random)
    uuid = _handed_over(Flow.uuid)
    version = _handed_over(Flow.version)
