"""What a worker says of itself, in the seed's words: `Worker 1: Processing job 42 (type: user_created)`.

A worker of the seed is a handler at work here: WORKER_COUNT of them run at once, numbered from 1.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, Final

from users_example.payload import JobType

LOGGER: Final = logging.getLogger("worker")
_SETTLED: Final = re.compile(
    r"^settled .*\boutbox_id=(?P<job>\d+) .*\bstatus=(?P<status>\w+)(?: .*\breason_code=(?P<reason>\w+))?"
)


class Telling(logging.Handler):
    """Tells how attempts begin and end. That a job is completed is said once it is written down, not before.

    As a handler of the logger `todoku` it hears of every settled attempt; anything else of a warning's weight that
    todoku says is passed on as it is.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(logging.INFO)
        self._workers = range(1, workers + 1)
        self._busy: set[int] = set()
        self._worker_of: dict[int, int] = {}
        self._told = threading.Lock()

    def around(self, job: int, type: JobType, attempt: Callable[[], Any]) -> Any:
        """Run an attempt, saying so."""
        with self._told:
            worker = next((each for each in self._workers if each not in self._busy), len(self._workers))
            self._busy.add(worker)
            self._worker_of[job] = worker
        LOGGER.info("Worker %d: Processing job %d (type: %s)", worker, job, type.value)
        try:
            return attempt()
        except Exception as error:
            LOGGER.warning("Worker %d: Job %d failed: %s", worker, job, _on_one_line(error))
            raise
        finally:
            with self._told:
                self._busy.discard(worker)

    def all(self, said: str) -> None:
        """Say something of every worker: started, stopped."""
        for worker in self._workers:
            LOGGER.info("Worker %d %s", worker, said)

    def emit(self, record: logging.LogRecord) -> None:
        """As logging.Handler.emit."""
        text = record.getMessage()
        settled = _SETTLED.match(text)
        if settled is None:
            if record.levelno >= logging.WARNING:
                LOGGER.log(record.levelno, "%s", text)
            return
        job, status = int(settled["job"]), settled["status"]
        with self._told:
            worker = self._worker_of.pop(job, None)
        who = "" if worker is None else f"Worker {worker}: "  # nobody ran what could not even be read
        if status == "succeeded":
            LOGGER.info("%sJob %d completed successfully", who, job)
        elif status == "aborted":
            LOGGER.error("%sJob %d is given up: %s", who, job, settled["reason"])


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def log_to_stderr() -> None:
    """One line each, with the time in front, as the seed's log has it."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y/%m/%d %H:%M:%S", level=logging.INFO, force=True)


def hear_todoku(handler: logging.Handler) -> None:
    """Let a handler hear what todoku says, and nobody else."""
    logger = logging.getLogger("todoku")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
