"""One worker process: `python -m todoku.daemon.child`, started by a supervisor and never by hand.

It says who it is before it claims, how it is every second and when that changes, and drains by itself when it is alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

from todoku.app import App
from todoku.core.errors import TodokuError
from todoku.core.settings import Settings
from todoku.daemon.app_loader import load_app
from todoku.daemon.demo import demonstration
from todoku.daemon.pipe import Incarnation, Measured, Report, Speaker
from todoku.daemon.supervisor import MARGIN
from todoku.engine.observability.log import Log, Style, configure_logging
from todoku.engine.worker.worker import Worker

T = TypeVar("T")

REPORT_EVERY: Final = 1.0
LOOK_EVERY: Final = 0.1
"""How often the worker is looked at: a change is reported at once."""
MEASURE_EVERY: Final = 1.0
STUCK: Final = 70
"""The exit code of a worker whose event loop did not turn for `max_processing_sec`."""


def main() -> None:
    """Work until told to stop, or until the supervisor is gone."""
    parser = argparse.ArgumentParser(prog="python -m todoku.daemon.child")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--started", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--app")
    parser.add_argument("--log", default="auto")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    configure_logging(given.log)
    try:
        work(given.number, given.app, given.log, Speaker(given.fd), given.started)
    except TodokuError as error:
        Log(number=given.number).error("WORKER_CANNOT_WORK", error=str(error))
        sys.exit(1)


def work(number: int, app: str | None, style: Style, speaker: Speaker, started: int) -> None:
    """Everything between the first word and the last. `started`: the memory shared with the supervisor."""
    box = demonstration() if app is None else load_app(app)
    configure_logging(style, masked=box.settings.mask_fields)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # of a database that is gone the heartbeat tells
    worker = box.worker()
    worker.share(started)
    worker.on_incarnation = lambda worker_id: speaker.say(Incarnation(worker_id))
    worker.on_stuck = lambda: os._exit(STUCK)  # our lease ends; the supervisor replaces us
    stopping = Stopping(worker, number)
    _in_thread(lambda: _leave_when_alone(speaker, worker, box.settings))
    _in_thread(lambda: _report(speaker, worker, box))
    Log().info(f"Worker {number} started")
    gc.collect()
    gc.freeze()  # what is loaded stays: a full collection stops every thread, and need not walk it
    try:
        run_loop(worker.run())
    finally:
        stopping.told()
        speaker.say(Measured(box.telemetry.dump()))
        speaker.say(Report(worker.health()))
        box.close()
    Log().info(f"Worker {number} stopped")


class Stopping:
    """SIGTERM drains the worker. It is told by a thread: a signal handler must not log."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self._number = number
        self._signalled = threading.Event()
        self._telling = _in_thread(self._tell)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._worker.drain()
        self._signalled.set()

    def _tell(self) -> None:
        self._signalled.wait()
        Log().info(f"Worker {self._number} received stop signal")

    def told(self) -> None:
        """Return when a signal that came has been told."""
        if self._signalled.is_set():
            self._telling.join(1.0)


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop: uvloop's where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - the extra `server`
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _leave_when_alone(speaker: Speaker, worker: Worker, settings: Settings) -> None:
    speaker.until_alone()
    Log(pid=os.getpid()).warning("SUPERVISOR_GONE")
    worker.drain()
    time.sleep(settings.drain_grace_sec + MARGIN)
    os._exit(1)  # blocked, and nobody is left who would end us: our lease is


def _report(speaker: Speaker, worker: Worker, box: App) -> None:
    said, said_at, measured_at = worker.health(), 0.0, 0.0
    while True:
        health, now = worker.health(), time.monotonic()
        if now - measured_at >= MEASURE_EVERY:
            measured_at = now
            speaker.say(Measured(box.telemetry.dump()))
        if now - said_at >= REPORT_EVERY or health != said:
            said, said_at = health, now
            speaker.say(Report(health))
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main()
