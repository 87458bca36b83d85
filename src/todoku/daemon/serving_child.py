"""One further serving process: `python -m todoku.daemon.serving_child`, started by the supervisor, never by hand.

It stores messages that clients send, and hands every other connection to the first serving process. It stops when the
supervisor is gone.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from todoku.app import App
from todoku.core.errors import TodokuError
from todoku.daemon.app_loader import load_app
from todoku.daemon.child_start import start_child
from todoku.daemon.demo_shop import create_demo_app
from todoku.daemon.handover import HandoverSender
from todoku.daemon.http_start import shared_counts
from todoku.daemon.http_thread import HttpThread
from todoku.daemon.pipe import MetricsReport, ReportPipe, Serving
from todoku.daemon.supervisor import MARGIN
from todoku.engine.observability.log import Log, Style, configure_logging

REPORT_EVERY: Final = 1.0


def main() -> None:
    """Serves until SIGTERM, or until the supervisor is gone."""
    given = start_child("todoku.daemon.serving_child", "listening", "hand-over", "rates")
    try:
        box = create_demo_app() if given.app is None else load_app(given.app)
        serve(box, given.log, given)
    except TodokuError as error:
        Log(number=given.number).error("CANNOT_SERVE", error=str(error))
        sys.exit(1)


def serve(box: App, style: Style, given: argparse.Namespace) -> None:
    """Serves until it has to stop, and answers what it has accepted."""
    configure_logging(style, masked=box.settings.mask_fields)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # the supervisor reports a lost database
    pipe = ReportPipe(given.fd)
    stops: SimpleQueue[None] = SimpleQueue()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stops.put(None))  # safe in a handler, as an Event is not
    http = create_http_thread(box, given.listening, given.hand_over, given.rates)
    http.start()
    grace = box.settings.drain_grace_sec
    threading.Thread(target=_stop_when_alone, args=(pipe, stops, grace), daemon=True).start()
    _report_until_stopped(http, box, pipe, stops)
    http.stop()
    pipe.send(MetricsReport(box.telemetry.dump()))
    box.close()


def _report_until_stopped(http: HttpThread, box: App, pipe: ReportPipe, stops: SimpleQueue[None]) -> None:
    """Reports while the event loop turns. If it does not, this process is silent, and the supervisor replaces it."""
    serves = False
    while True:
        if http.has_turned(REPORT_EVERY):
            if not serves:
                serves = True
                pipe.send(Serving())
            pipe.send(MetricsReport(box.telemetry.dump()))
        with suppress(Empty):
            stops.get(timeout=REPORT_EVERY)
            return


def create_http_thread(box: App, listening: int, hand_over: int, rates: int) -> HttpThread:
    """Creates the server from the descriptors that the supervisor passed on."""
    from todoku.api.server import intake_app  # noqa: PLC0415 - the extra `server`
    from todoku.api.shared_port import handing_options  # noqa: PLC0415

    for descriptor in (listening, hand_over, rates):
        os.set_inheritable(descriptor, False)
    sender = HandoverSender(socket.socket(fileno=hand_over))
    return HttpThread(
        lambda: intake_app(box, shared_counts(rates)),
        socket.socket(fileno=listening),
        partial(handing_options, hand_over=sender.send),
        grace=math.ceil(box.settings.drain_grace_sec),
    )


def _stop_when_alone(pipe: ReportPipe, stops: SimpleQueue[None], grace: float) -> None:
    pipe.wait_until_alone()
    stops.put(None)
    time.sleep(grace + MARGIN)
    os._exit(1)  # a request that does not end, and no supervisor is left to kill this process


if __name__ == "__main__":
    main()
