"""Where the handlers of a worker stand now: stacks of coroutines, threads and processes, without local variables."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

import msgspec

from todoku.core.message import Claimed
from todoku.core.msgspec_warmup import warm_up
from todoku.engine.tracebacks import Which, format_frames

MOST: Final = 50
"""The most handlers of a worker whose stacks are stored: those that have run longest."""

_DEPTH: Final = 1000
"""The most coroutines that are followed from one handler."""


class RunningHandler(msgspec.Struct, frozen=True):
    """An attempt that runs now, for `seconds`, and where its handler stands (None: it cannot be seen)."""

    delivery: int
    message_id: str
    destination: str
    topic: str
    attempt: int
    runs_in: str
    seconds: float
    stack: str | None


class HandlerStacks(msgspec.Struct, frozen=True):
    """The handlers that a worker runs now, those that have run longest first; `more` were left out.

    `kept`: False if the setting `tracebacks` is `off`, and no stack is taken.
    """

    handlers: tuple[RunningHandler, ...]
    more: int
    kept: bool


warm_up(HandlerStacks)


def bounded(found: Sequence[RunningHandler], which: Which) -> HandlerStacks:
    """Returns the handlers that have run longest, at most MOST of them."""
    longest = sorted(found, key=lambda one: -one.seconds)
    return HandlerStacks(tuple(longest[:MOST]), max(0, len(longest) - MOST), which != "off")


def describe_handler(claim: Claimed, runs_in: str, seconds: float, stack: str | None) -> RunningHandler:
    """Returns what is shown of a running attempt: nothing of its payload or headers."""
    return RunningHandler(
        claim.id, claim.message_id, claim.destination, claim.topic, claim.attempt, runs_in, round(seconds, 3), stack
    )


def coroutine_stack(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, loop_thread: int, package: str, which: Which
) -> str | None:
    """Returns where a task stands: the frames of the coroutines that it awaits, or of the loop's thread if it runs now.

    Called from another thread: a loop that its handler blocks could not answer.
    """
    if asyncio.current_task(loop) is task:
        return thread_stack(loop_thread, package, which)
    trace = format_frames(list(_awaited_frames(task.get_coro())), package, which)
    return None if trace is None else trace.text


def thread_stack(ident: int | None, package: str, which: Which) -> str | None:
    """Returns where a thread stands."""
    frame = sys._current_frames().get(ident or 0)
    frames: list[FrameType] = []
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    trace = format_frames(frames, package, which)
    return None if trace is None else trace.text


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Yields the frames of a suspended coroutine and of those it awaits, the outermost first.

    What it awaits last (a future, a socket) has no frame: the last line says for what.
    """
    for _ in range(_DEPTH):
        if inspect.iscoroutine(awaited):
            frame, following = awaited.cr_frame, awaited.cr_await
        elif inspect.isgenerator(awaited):
            frame, following = awaited.gi_frame, awaited.gi_yieldfrom
        elif inspect.isasyncgen(awaited):
            frame, following = awaited.ag_frame, awaited.ag_await
        else:
            return
        if frame is None:  # it ended meanwhile
            return
        yield frame
        awaited = following
