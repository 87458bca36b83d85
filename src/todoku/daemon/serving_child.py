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
from functools import partial
from typing import Final

from todoku.app import App
from todoku.core.errors import TodokuError
from todoku.daemon.app_loader import load_app
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
    parser = argparse.ArgumentParser(prog="python -m todoku.daemon.serving_child")
    for name in ("fd", "listening", "hand-over", "rates", "number"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--app")
    parser.add_argument("--log", default="auto")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    configure_logging(given.log)
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
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    http = create_http_thread(box, given.listening, given.hand_over, given.rates)
    http.start()
    grace = box.settings.drain_grace_sec
    threading.Thread(target=_stop_when_alone, args=(pipe, stopped, grace), daemon=True).start()
    serves = False
    while not stopped.is_set():
        if http.has_turned(REPORT_EVERY):  # a loop that does not turn makes this process silent, and it is replaced
            if not serves:
                serves = True
                pipe.send(Serving())
            pipe.send(MetricsReport(box.telemetry.dump()))
        stopped.wait(REPORT_EVERY)
    http.stop()
    pipe.send(MetricsReport(box.telemetry.dump()))
    box.close()


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


def _stop_when_alone(pipe: ReportPipe, stopped: threading.Event, grace: float) -> None:
    pipe.wait_until_alone()
    stopped.set()
    time.sleep(grace + MARGIN)
    os._exit(1)  # a request that does not end, and no supervisor is left to kill this process


if __name__ == "__main__":
    main()
