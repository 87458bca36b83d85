"""`worker [database_path]`: runs the jobs, WORKER_COUNT at once, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import todoku
from users_example.application import Application, opened
from users_example.settings import read_settings
from users_example.telling import LOGGER, Telling, hear_todoku, log_to_stderr

WORKERS = 3
LEASE = "30"
"""Seconds after which the jobs of a worker that was killed run again; one that stops gives them back itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 stopped, 1 the database failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="worker", description="Runs jobs until SIGINT or SIGTERM. WORKER_COUNT (3) handlers run at once."
    )
    parser.add_argument("database_path", nargs="?", help="SQLite file or database URL (DATABASE_URL, else workers.db)")
    given = parser.parse_args(arguments)
    os.environ.setdefault("WORKER_COUNT", str(WORKERS))
    os.environ.setdefault("TODOKU_LEASE_SEC", LEASE)
    log_to_stderr()
    try:
        settings = read_settings(os.environ, given.database_path)
        telling = Telling(_workers())
        hear_todoku(telling)
        with opened(settings, telling.around, LOGGER.warning) as application:
            asyncio.run(work(application, telling))
    except todoku.TodokuError as error:
        sys.stderr.write(f"worker: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting) else 1
    return 0


def _workers() -> int:
    """todoku reads WORKER_COUNT itself, and refuses what is no number above 0; here it only numbers the workers."""
    text = os.environ["WORKER_COUNT"]
    if not text.isdecimal() or int(text) == 0:
        raise todoku.InvalidSetting(f"WORKER_COUNT cannot be {text!r}", hint="a whole number, 1 or more")
    return int(text)


async def work(application: Application, telling: Telling) -> None:
    """Until a signal comes. What runs then is finished, what has not begun is given back. A second signal ends it."""
    worker = application.box.worker()
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        loop.remove_signal_handler(number)
        telling.all("received stop signal")
        worker.drain()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    statistics = asyncio.create_task(_statistics(application))
    telling.all("started")
    try:
        await worker.run()
    finally:
        statistics.cancel()
    telling.all("stopped")


async def _statistics(application: Application) -> None:
    """The seed's line, every 30 seconds; a database that cannot be asked is not the end."""
    while True:
        await asyncio.sleep(application.settings.stats_every)
        try:
            LOGGER.info("%s", await asyncio.to_thread(application.queue.stats))
        except Exception as error:  # noqa: BLE001 - whatever a driver says; todoku tells about the database
            LOGGER.warning("no statistics: %s", error)


if __name__ == "__main__":
    sys.exit(main())
