# ruff: noqa: INP001 - a program to copy into an empty folder; it prints
"""The steps of the labs in docs/runbook.md that are no commands of todoku's own: `python steps.py STEP …`.

    enqueue JOB N      N calls of a job, in one transaction
    until WORD…        wait for each, and print them: `ready`; a reason of /readyz (`draining`, `tripped`); STATE=N, as
                       succeeded=12: at least so many; again=N: at least so many messages began a second time;
                       breaker=NAME: the breaker of that destination is open
    ask PATH           what the daemon answers, with its status
    kill-worker        kill -9 a worker process that has messages in hand, and remember when
    healed             how long after that the first of its messages ran again
    dependency         serve what lab 2 depends on, and write each call into calls.log
    calls JOB          how many calls of that job came, of how many messages, and how close together
    lock SECONDS       hold SQLite's one write lock

Only `enqueue` needs the app; the others ask the daemon over HTTP (TODOKU_PORT, 8320).
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 120.0
DAEMON = f"http://127.0.0.1:{os.environ.get('TODOKU_PORT', '8320')}"
DEPENDENCY = os.environ.get("LABS_DEPENDENCY", "http://127.0.0.1:8321")


def answer(path: str) -> tuple[int, Any]:
    """What the daemon says, and its status; (0, {}) if nobody answers."""
    try:
        with urllib.request.urlopen(DAEMON + path, timeout=60) as found:  # noqa: S310 - our own address
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def wait(condition: Callable[[], bool], what: str) -> None:
    """Look again and again, for two minutes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"steps: waited {PATIENCE:.0f} s for {what}; the daemon says {answer('/readyz?verbose')}")
        time.sleep(0.05)


def begun() -> list[tuple[float, str, int]]:
    """What handlers noted: when, which message, in which process."""
    file = Path("ran.log")
    text = file.read_text("utf-8") if file.exists() else ""
    parts = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]  # one may be half written
    return [(float(at), f"{job} {n}", int(pid)) for at, job, n, pid in parts]


def again() -> int:
    """How many messages began more than once."""
    names = [name for _, name, _ in begun()]
    return sum(names.count(name) > 1 for name in set(names))


def enqueue(job: str, number: str) -> None:
    """Store so many calls of a job."""
    from labs import box  # noqa: PLC0415 - the other steps start faster without it

    box.enqueue_many([box.jobs[job].call(n) for n in range(1, int(number) + 1)], tx=None)
    box.close()
    print(f"{number} × {job}")


def until(*words: str) -> None:
    """Wait until each of them is true."""
    for word in words:
        wait(lambda word=word: holds(word), word)  # type: ignore[misc]
    print(", ".join(words))


def holds(word: str) -> bool:
    """Whether it is so now."""
    state, equals, number = word.partition("=")
    if state == "again":
        return again() >= int(number)
    if state == "breaker":
        return number in answer("/readyz?verbose")[1].get("breakers", ())
    if equals:
        _, body = answer("/api/messages?limit=1")
        return "counts" in body and bool(body["counts"][state] >= int(number))
    status, body = answer("/readyz")
    return status == 200 if word == "ready" else word in body.get("reasons", ())


def ask(path: str) -> None:
    """Print an answer."""
    status, body = answer(path)
    print(status, json.dumps(body))


def kill_worker() -> None:
    """End a worker process as a crash does, and note who it was and when."""
    busy: list[int] = []

    def found() -> bool:
        workers = answer("/readyz?verbose")[1].get("workers", ())
        noted = {pid for _, _, pid in begun()}  # its handlers have begun: the health it reports may be older
        busy[:] = [worker["pid"] for worker in workers if worker["running"] and worker["pid"] in noted]
        return bool(busy)

    wait(found, "a worker process that runs something")
    os.kill(busy[0], signal.SIGKILL)
    Path("killed").write_text(f"{time.time():.3f} {busy[0]}", "utf-8")
    print(f"killed {busy[0]}")


def healed() -> None:
    """Compare when it died with when what it had begun began again, elsewhere."""
    at, pid = Path("killed").read_text("utf-8").split()
    lost = {name for _, name, process in begun() if process == int(pid)}
    after = [begin - float(at) for begin, name, process in begun() if name in lost and process != int(pid)]
    print(f"{len(lost)} had begun in {pid}, {len(after)} of them began again, the first after {min(after):.2f} s")


class Dependency(BaseHTTPRequestHandler):
    """Answers 200 and writes down who called."""

    def do_GET(self) -> None:
        """One call."""
        with Path("calls.log").open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {self.path}\n")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: calls.log has it."""


def dependency() -> None:
    """Serve until stopped."""
    where = urlsplit(DEPENDENCY)
    ThreadingHTTPServer((where.hostname or "127.0.0.1", where.port or 8321), Dependency).serve_forever()


def calls(job: str) -> None:
    """Count what the dependency wrote down."""
    came = [line.split() for line in Path("calls.log").read_text("utf-8").splitlines()]
    times = sorted(float(at) for at, path in came if path.startswith(f"/{job}/"))
    messages = {path for _, path in came if path.startswith(f"/{job}/")}
    busiest = max(sum(at <= other < at + 0.1 for other in times) for at in times)
    spread = times[-1] - times[0]
    print(f"{len(times)} calls of {len(messages)} messages within {spread:.2f} s, at most {busiest} in 0.1 s")


def lock(seconds: str) -> None:
    """Be the program that forgot to commit."""
    with closing(sqlite3.connect("todoku.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        print("locked", flush=True)
        time.sleep(float(seconds))
        connection.execute("rollback")


STEPS: dict[str, Callable[..., None]] = {
    "enqueue": enqueue,
    "until": until,
    "ask": ask,
    "kill-worker": kill_worker,
    "healed": healed,
    "dependency": dependency,
    "calls": calls,
    "lock": lock,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        sys.exit(__doc__)
    STEPS[sys.argv[1]](*sys.argv[2:])
