"""One worker process: `python -m todoku.daemon.child`, started by the supervisor, never by hand.

It reports the id of its lease before it claims, and its health every second and at each change. It drains by itself
when the supervisor is gone.
"""

from __future__ import annotations

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
from todoku.daemon.child_start import start_child
from todoku.daemon.demo_shop import create_demo_app
from todoku.daemon.pipe import HealthReport, Incarnation, MetricsReport, ReportPipe
from todoku.daemon.supervisor import MARGIN
from todoku.daemon.terminal import print_attempts
from todoku.engine.observability.log import Log, Style, configure_logging, writes_text
from todoku.engine.worker.worker import Worker

T = TypeVar("T")

REPORT_EVERY: Final = 1.0
LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the worker's health: a change is reported at the next look."""
MEASURE_EVERY: Final = 1.0
STUCK_EXIT_CODE: Final = 70
"""Exit code of a worker whose event loop was blocked for `max_processing_sec`."""


def main() -> None:
    """Runs one worker until SIGTERM, or until the supervisor is gone."""
    given = start_child("todoku.daemon.child", "started")
    try:
        run_worker(given.number, given.app, given.log, ReportPipe(given.fd), given.started)
    except TodokuError as error:
        Log(number=given.number).error("WORKER_CANNOT_WORK", error=str(error))
        sys.exit(1)


def run_worker(number: int, app: str | None, style: Style, pipe: ReportPipe, started: int) -> None:
    """Runs the worker until it has drained. `started`: descriptor of the memory shared with the supervisor."""
    box = create_demo_app() if app is None else load_app(app)
    configure_logging(style, masked=box.settings.mask_fields)
    if writes_text(style, sys.stderr):
        print_attempts(box, sys.stderr)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # the heartbeat reports a lost database
    worker = box.worker()
    worker.share(started)
    worker.on_incarnation = lambda worker_id: pipe.send(Incarnation(worker_id))
    worker.on_stuck = lambda: os._exit(STUCK_EXIT_CODE)  # the lease ends, and the supervisor starts another process
    stop_signal = StopSignal(worker, number)
    _in_thread(lambda: _exit_when_alone(pipe, worker, box.settings))
    _in_thread(lambda: _report(pipe, worker, box))
    Log().info(f"Worker {number} started")
    gc.collect()
    gc.freeze()  # a full collection stops every thread; it need not visit what is loaded for good
    try:
        run_loop(worker.run())
    finally:
        stop_signal.wait_logged()
        pipe.send(MetricsReport(box.telemetry.dump()))
        pipe.send(HealthReport(worker.health()))
        box.close()
    Log().info(f"Worker {number} stopped")


class StopSignal:
    """Drains the worker on SIGTERM. A thread logs it, because a signal handler must not log."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self._number = number
        self._signalled = threading.Event()
        self._logger = _in_thread(self._log)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._worker.drain()
        self._signalled.set()

    def _log(self) -> None:
        self._signalled.wait()
        Log().info(f"Worker {self._number} received stop signal")

    def wait_logged(self) -> None:
        """Returns when a signal that was received has been logged."""
        if self._signalled.is_set():
            self._logger.join(1.0)


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in a new event loop: uvloop's, if it is installed."""
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


def _exit_when_alone(pipe: ReportPipe, worker: Worker, settings: Settings) -> None:
    pipe.wait_until_alone()
    Log(pid=os.getpid()).warning("SUPERVISOR_GONE")
    worker.drain()
    time.sleep(settings.drain_grace_sec + MARGIN)
    os._exit(1)  # a blocked handler; no supervisor is left to kill this process, and its lease has ended


def _report(pipe: ReportPipe, worker: Worker, box: App) -> None:
    reported, reported_at, measured_at = worker.health(), 0.0, 0.0
    while True:
        health, now = worker.health(), time.monotonic()
        if now - measured_at >= MEASURE_EVERY:
            measured_at = now
            pipe.send(MetricsReport(box.telemetry.dump()))
        if now - reported_at >= REPORT_EVERY or health != reported:
            reported, reported_at = health, now
            pipe.send(HealthReport(health))
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main()
