"""Jobs that run in processes of their own: importable, because a process finds them by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import todoku

box = todoku.App(os.environ.get("TODOKU_TEST_APART", "sqlite:///never-opened.db"))


@box.job(run="process", keep_result=True)
def square(ctx: todoku.Context, number: int) -> dict[str, int]:
    """Works."""
    return {"square": number * number, "pid": os.getpid(), "attempt": ctx.attempt}


@box.job(run="process", timeout=1.0)
def forever(mark: str) -> None:
    """Is killed at its timeout; leaves a mark if it is not."""
    time.sleep(30)
    Path(mark).touch()


@box.job(run="process")
def die() -> None:
    """Takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)


@box.job(run="process")
def fail() -> None:
    """Raises something of its own."""

    class Peculiar(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one + two)

    raise Peculiar(1, 2)


@box.job(run="process", max_attempts=1)
def pay(ctx: todoku.Context, participant: str) -> None:
    """Says whose payment it is, enqueues another job from its own process, and fails."""
    ctx.log.bind(event_id="evt_1", participant_id=participant)
    square.enqueue(2)
    raise TimeoutError("no answer")


@box.job(run="process", timeout=600)
def linger(mark: str, go: str) -> None:
    """Stays in one line of code until it may end."""
    Path(mark).touch()
    while not Path(go).exists():
        time.sleep(0.05)
