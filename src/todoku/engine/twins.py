"""One implementation of each public call, in two forms: `publish` for blocking code, `apublish` for async code.

The implementation is a coroutine that awaits only steps, and other coroutines of this kind. A step is a wait that can
be done in both ways (`Awaited`): `now` blocks the thread, `later` suspends the caller and leaves the event loop free.

    @blocking("box")
    async def publish(self, …) -> Message:      # called as box.publish(…)
        (message,) = await self.outbox.insert(…)
        return message

    apublish = asynchronous(publish)            # called as await box.apublish(…)

Type checkers derive both signatures from the implementation.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import CoroutineType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from todoku.core.errors import BlockingCall

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_IMPLEMENTATION: Final = "todoku_implementation"


class Awaited(ABC, Generic[T]):
    """Something to wait for. Only an implementation awaits it: an event loop cannot."""

    @abstractmethod
    def now(self, twin: str) -> T:
        """Waits in this thread. `twin`: the call that BlockingCall suggests to await instead."""

    @abstractmethod
    async def later(self) -> T:
        """Waits without blocking the event loop."""

    def __await__(self) -> Generator[Any, Any, T]:
        return (yield self)  # type: ignore[no-any-return]  # `now` and `later` send T


class _OffLoop(Awaited[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call

    def now(self, twin: str) -> T:  # noqa: ARG002 - refuses nothing
        return self._call()

    async def later(self) -> T:
        return await asyncio.to_thread(self._call)


class _InThread(_OffLoop[T]):
    def now(self, twin: str) -> T:
        refuse_in_event_loop(twin)
        return self._call()


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaited[T]:
    """Makes a blocking call: in the caller's own thread, or, for an async caller, in another one."""
    return _InThread(partial(call, *args, **kwargs))


def off_loop(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaited[T]:
    """Makes a call like `in_thread`, but never raises BlockingCall: for a short wait beside the caller's own `tx`."""
    return _OffLoop(partial(call, *args, **kwargs))


class Signal:
    """A wake-up for one implementation, which any thread may give."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._tell: Callable[[], object] | None = None

    def give(self) -> None:
        """Wakes the implementation, or lets its next wait return at once."""
        self._given.set()
        if (tell := self._tell) is not None:
            with suppress(RuntimeError):  # its event loop is closed: there is no one to wake
                tell()

    def within(self, seconds: float) -> Awaited[bool]:
        """Waits for the wake-up. False: it did not come in this time."""
        return _SignalWait(self, seconds)

    def take(self, seconds: float = 0.0) -> bool:
        """Waits in this thread. Returns whether the wake-up was given, and forgets it."""
        given = self._given.wait(seconds)
        self._given.clear()
        return given

    @contextmanager
    def telling(self, tell: Callable[[], object]) -> Iterator[None]:
        """Calls `tell`, from the thread that gives the wake-up, while the block runs."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None


class _SignalWait(Awaited[bool]):
    def __init__(self, signal: Signal, seconds: float) -> None:
        self._signal = signal
        self._seconds = seconds

    def now(self, twin: str) -> bool:
        refuse_in_event_loop(twin)
        return self._signal.take(self._seconds)

    async def later(self) -> bool:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with self._signal.telling(lambda: loop.call_soon_threadsafe(woken.set)):
            if not self._signal.take():  # it may have been given before
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), self._seconds)
                return self._signal.take()
        return True


def blocking(
    noun: str | Callable[[Any], str],
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, R]]:
    """Makes the blocking form of an implementation, with its name, docstring and signature.

    `noun`: what users call the object, or a function that returns it, for the hint of BlockingCall.
    """

    def decorate(implementation: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
        tail = f".a{implementation.__name__}(…)"
        known, named = (noun + tail, str) if isinstance(noun, str) else ("", noun)

        @wraps(implementation)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return now(implementation(*args, **kwargs), known or named(args[0]) + tail)

        # Frameworks that unwrap a function to see whether it is async must not find the implementation.
        del call.__wrapped__
        call.__dict__ |= {_IMPLEMENTATION: implementation, "__signature__": inspect.signature(implementation)}
        return call

    return decorate


def asynchronous(call: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Makes the async form of what `blocking` decorates, named `a…`, with the same parameters and docstring."""
    implementation: Callable[P, Coroutine[Any, Any, R]] = vars(call)[_IMPLEMENTATION]
    name = f"a{implementation.__name__}"
    qualname = f"{implementation.__qualname__.removesuffix(implementation.__name__)}{name}"

    # Not `async def`: wrong arguments raise TypeError at the call, not at the await.
    @wraps(implementation)
    def acall(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine = cast("CoroutineType[Any, Any, R]", later(implementation(*args, **kwargs)))
        coroutine.__qualname__ = qualname  # for the warning that it was never awaited
        return coroutine

    acall.__name__, acall.__qualname__ = name, qualname
    first, newline, rest = (implementation.__doc__ or "").partition("\n")
    acall.__doc__ = f"{first.removesuffix('.')} (async).{newline}{rest}"
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(acall)
    return acall


def now(implementation: Coroutine[Any, Any, R], twin: str) -> R:
    """Runs an implementation to its end in this thread. `twin`: as of Awaited.now."""
    try:
        step = implementation.send(None)
        while True:
            try:
                value = step.now(twin)
            except BaseException as error:  # noqa: BLE001 - the implementation decides, as after any await
                step = implementation.throw(error)
            else:
                step = implementation.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the coroutine returned, which is R


async def later(implementation: Coroutine[Any, Any, R]) -> R:
    """Runs an implementation to its end in this event loop, without blocking it."""
    try:
        step = implementation.send(None)
        while True:
            try:
                value = await step.later()
            except BaseException as error:  # noqa: BLE001 - as in `now`
                step = implementation.throw(error)
            else:
                step = implementation.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # as in `now`


def refuse_in_event_loop(twin: str) -> None:
    """Raises BlockingCall, which names the call to await, if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCall("this call blocks, and this thread runs an event loop", hint=f"await {twin}")
