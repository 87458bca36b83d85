# ruff: noqa: INP001 - a program to copy into an empty folder, not a package
"""The app of the labs in docs/runbook.md: jobs that do well, fail, hang or kill on purpose.

What a job does is decided by its name and by files in the current folder, so that a person can change it while it runs.
The database is the one of TODOKU_DATABASE or DATABASE_URL, else the SQLite file todoku.db in this folder.
"""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from pathlib import Path

import todoku

DEPENDENCY = os.environ.get("LABS_DEPENDENCY", "http://127.0.0.1:8321")

box = todoku.App()


def note(job: str, n: int) -> None:
    """Write down that an attempt begins: when, which job, which message, in which process."""
    with Path("ran.log").open("a", encoding="utf-8") as file:
        file.write(f"{time.time():.3f} {job} {n} {os.getpid()}\n")


def ask_dependency(job: str, n: int) -> None:
    """Call the dependency of lab 2; an OSError if it does not answer."""
    with urllib.request.urlopen(f"{DEPENDENCY}/{job}/{n}", timeout=5):  # noqa: S310 - our own address
        pass


@box.job
async def ok(n: int) -> None:
    """Succeeds."""
    note("ok", n)


@box.job
async def slow(n: int) -> None:
    """Works until there is a file `go`."""
    note("slow", n)
    while not Path("go").exists():  # noqa: ASYNC110, ASYNC240 - the event is a person who types `touch go`
        await asyncio.sleep(0.05)


@box.job(max_attempts=10, backoff=todoku.exponential(base=1, cap=8))
def call(n: int) -> None:
    """Needs the dependency, and lets its errors through: the reason is NETWORK, and counts for the breaker."""
    ask_dependency("call", n)


@box.job(max_attempts=10, backoff=todoku.table(10))
def index(n: int) -> None:
    """Needs the dependency too, and gives a failure a reason of its own: each message waits for itself."""
    try:
        ask_dependency("index", n)
    except OSError as error:
        raise todoku.Retry(reason="INDEX_DOWN") from error


@box.job
def mail(n: int) -> None:
    """Fails in a way that trying again cannot mend, until there is a file `mended`."""
    note("mail", n)
    if not Path("mended").exists():
        raise todoku.Abort("MAILBOX_UNKNOWN", f"user {n} has no mailbox")


@box.job(max_attempts=3, backoff=todoku.table(0.5, 1))
def broken(n: int) -> None:
    """Fails in a way nobody thought of, each time."""
    note("broken", n)
    raise RuntimeError(f"nobody thought of {n}")


@box.job
async def killer(n: int) -> None:
    """Takes its whole worker process with it."""
    note("killer", n)
    os._exit(9)
