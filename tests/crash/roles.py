"""What the processes of the crash tests do. Each function is called in a process of its own, forked by the nursery."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from pathlib import Path

import psycopg

import todoku
from tests.crash.app import crash_app, publish_next
from tests.support.permissions import obey_permissions
from tests.support.receiver import Receiver
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.daemon.child import run_loop
from todoku.engine import claim
from todoku.engine.observability.log import configure_logging


def worker() -> int:
    """A worker, as `todoku run` starts one: until it is told to drain."""
    _configure()
    _obey_permissions()
    box, receiver = crash_app(), _receiver()
    claim.FEWEST = int(os.environ.get("TODOKU_TEST_FEWEST", claim.FEWEST))
    worker = box.worker()
    worker.on_incarnation = receiver.incarnated
    signal.signal(signal.SIGTERM, lambda *_: worker.drain())
    run_loop(worker.run())
    box.close()
    return 0


def publisher() -> int:
    """Publishes one message after the other, from TODOKU_TEST_FIRST on, until it is told to stop."""
    _configure()
    _obey_permissions()
    box, receiver = crash_app(), _receiver()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    pause = float(os.environ.get("TODOKU_TEST_PAUSE", "0.005"))
    n = int(os.environ["TODOKU_TEST_FIRST"])
    last = n + int(os.environ.get("TODOKU_TEST_NUMBER", str(1 << 30)))
    while n < last and not stopping.is_set():
        if publish_one(box, receiver, n):
            n += 1
        stopping.wait(pause)
    box.close()
    return 0


def crowd() -> int:
    """TODOKU_TEST_CROWD publishers at once: every other one brings a connection of its own to each message.

    Refused, they try again; told to stop, they give up.
    """
    _configure()
    box, receiver = crash_app(), _receiver()
    first, number = int(os.environ["TODOKU_TEST_FIRST"]), int(os.environ["TODOKU_TEST_CROWD"])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def publish(place: int) -> None:
        once = _in_own_transaction if place % 2 else publish_one
        for n in (first + place, first + number + place):
            while not stopping.is_set() and not once(box, receiver, n):
                stopping.wait(random.uniform(0.05, 0.5))

    threads = [threading.Thread(target=publish, args=(place,)) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    box.close()
    return 0


def _in_own_transaction(box: todoku.App, receiver: Receiver, n: int) -> bool:
    try:
        with psycopg.connect(os.environ["TODOKU_DATABASE"]) as connection:
            message, destinations, key = publish_next(box, n, tx=connection)
    except psycopg.OperationalError as error:
        receiver.refused(error)
        return False
    receiver.acknowledged(message, destinations, key)
    return True


def publish_one(box: todoku.App, receiver: Receiver, n: int) -> bool:
    """Publish and note what came of it. False: it is not known whether it was stored, and it can be repeated."""
    try:
        message, destinations, key = publish_next(box, n)
    except (DatabaseUnavailable, DatabaseBusy) as error:  # what a publisher is told; anything else ends the process
        receiver.refused(error)
        return False
    receiver.acknowledged(message, destinations, key)
    return True


def _configure() -> None:
    configure_logging("json")
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # as in a worker process of the daemon


def _receiver() -> Receiver:
    return Receiver(Path(os.environ["TODOKU_TEST_RECEIVER"]))


def _obey_permissions() -> None:
    """Where it is asked for: root could write whatever the permissions say."""
    if "TODOKU_TEST_OBEY_PERMISSIONS" in os.environ:
        obey_permissions()
