"""A worker process whose handler keeps order, and asks for all there is to ask: retries, snoozes, dead letters.

What a message comes to is written in its name, so that whoever checks it needs nobody's word for it.
"""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path
from typing import Literal

import todoku
from tests.support.receiver import Receiver
from todoku.daemon.child import run_loop
from todoku.engine.observability.log import configure_logging

Fate = Literal["done", "retried", "snoozed", "skipped"]


def fate(name: str) -> Fate:
    """One in ten is retried once, one in ten snoozes once, one in ten is given up and skipped."""
    number = zlib.crc32(name.encode()) % 10
    return {0: "retried", 1: "snoozed", 2: "skipped"}.get(number, "done")  # type: ignore[return-value]


def lane_app(database: str, receiver: Receiver | None = None) -> todoku.App:
    """The App. Without a receiver it only publishes."""
    box = todoku.App(database)

    @box.job("laned", ordered=True, on_dead="skip", backoff=todoku.table(0.01), max_attempts=10_000)
    async def laned(ctx: todoku.Context, name: str) -> None:
        assert receiver is not None
        with receiver.attempt(name, ctx.key or "", ctx.attempt):
            match fate(name):
                case "retried" if ctx.attempt == 1:
                    raise todoku.Retry(after=0.01, reason="PLANNED")
                case "snoozed" if ctx.claim.snoozes == 0:
                    raise todoku.Snooze(0.01)
                case "skipped":
                    raise todoku.Abort("PLANNED")

    return box


def worker() -> int:
    """A worker, as `todoku run` starts one: until it is told to drain."""
    configure_logging("json")
    receiver = Receiver(Path(os.environ["TODOKU_TEST_RECEIVER"]))
    box = lane_app(os.environ["TODOKU_DATABASE"], receiver)
    worker = box.worker()
    worker.on_incarnation = receiver.incarnated
    signal.signal(signal.SIGTERM, lambda *_: worker.drain())
    run_loop(worker.run())
    box.close()
    return 0
