"""What the Python programs of `make bench` share. Standard library only: they run in environments of their own.

A program is called as `<program> ROLE [N]` and prints JSON, one document a line, on stdout; logs go to stderr.

- `prepare`: make the schema.
- `fill N`: enqueue N jobs by the best public bulk call → `{"seconds": …, "cpu": …}`. With BENCH_DELAY_SEC they are due
  so much later.
- `publish N`: one by one, each in a transaction of its own, BENCH_PUBLISHERS at once → the same.
- `caller N`: as `publish`, but each in a transaction of the caller, which inserts a row into `bench_order`, too.
- `work`: connect, print `{"ready": true, "warmed": n}` (n: jobs that it has run before, to be warm), wait for the line
  `go`; run jobs; print `{"done": n}` about every 20 ms when it has changed; on the line `stop` print `{"done": …,
  "first": …, "last": …, "cpu": …, "rss": …}` and end. With BENCH_STAMPS=1 it prints `{"n": n, "start": t}` for each
  job, too.
- `paced N`: enqueue N jobs, one every 10 ms with jitter → `{"n": n, "returned": t}` for each.

Environment: BENCH_URL, BENCH_PROCESSES, BENCH_PUBLISHERS, BENCH_HANDLER_MS, BENCH_SLOTS (of this process, where
handlers take time), BENCH_ROW (what is measured). The clock is CLOCK_MONOTONIC, the same for all processes of a
machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

URL = os.environ.get("BENCH_URL", "")
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "2"))
PUBLISHERS = int(os.environ.get("BENCH_PUBLISHERS", "8"))
HANDLER_SEC = float(os.environ.get("BENCH_HANDLER_MS", "0")) / 1000
SLOTS = int(os.environ.get("BENCH_SLOTS", "200"))
DELAY_SEC = float(os.environ.get("BENCH_DELAY_SEC", "0"))
STAMPS = os.environ.get("BENCH_STAMPS") == "1"
TEXT = "x" * 180
SAY_SEC = 0.02
PACE_SEC = 0.01

_saying = threading.Lock()


def say(document: Mapping[str, object]) -> None:
    """One line for the frame."""
    with _saying:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def payload(n: int) -> dict[str, Any]:
    """The payload of a job, the same for all peers."""
    return {"n": n, "text": TEXT}


def cpu() -> float:
    """Seconds of processor time of this process and its children so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# --------------------------------------------------------------------------------------------------------- enqueueing


def timed(work: Callable[[], None]) -> None:
    """Do it, and say how long it took."""
    began, used = time.monotonic(), cpu()
    work()
    say({"seconds": time.monotonic() - began, "cpu": cpu() - used})


async def timed_async(work: Awaitable[None]) -> None:
    """The same for a coroutine."""
    began, used = time.monotonic(), cpu()
    await work
    say({"seconds": time.monotonic() - began, "cpu": cpu() - used})


def shares(number: int) -> list[range]:
    """The numbers of each publisher."""
    return [range(place, number, PUBLISHERS) for place in range(PUBLISHERS)]


def by_threads(number: int, publish: Callable[[range], None]) -> None:
    """Publishers in threads; an error of one is the error of all."""
    errors: list[BaseException] = []

    def one(share: range) -> None:
        try:
            publish(share)
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            errors.append(error)

    def work() -> None:
        threads = [threading.Thread(target=one, args=(share,)) for share in shares(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    timed(work)
    if errors:
        raise errors[0]


def pauses() -> Callable[[], float]:
    """The seconds before the next job of `paced`: always the same row of numbers, so that peers are treated alike."""
    choice = random.Random(16)
    return lambda: choice.uniform(0.5, 1.5) * PACE_SEC


def paced(number: int, enqueue: Callable[[int], object]) -> None:
    """One by one with pauses; what is to be said is said afterwards, in order not to disturb."""
    pause, returned = pauses(), []
    for n in range(number):
        time.sleep(pause())
        enqueue(n)
        returned.append(time.monotonic())
    for n, at in enumerate(returned):
        say({"n": n, "returned": at})


async def paced_async(number: int, enqueue: Callable[[int], Awaitable[object]]) -> None:
    """The same for a coroutine."""
    pause, returned = pauses(), []
    for n in range(number):
        await asyncio.sleep(pause())
        await enqueue(n)
        returned.append(time.monotonic())
    for n, at in enumerate(returned):
        say({"n": n, "returned": at})


# ------------------------------------------------------------------------------------------------------------ working


class Work:
    """Counts what has run, and talks to the frame."""

    def __init__(self) -> None:
        self.done = 0
        self.first = self.last = 0.0
        self._counting = threading.Lock()

    def count(self) -> None:
        """One job has run."""
        self.last = time.monotonic()
        if not self.done:
            self.first = self.last
        self.done += 1

    async def handle(self, n: int) -> None:
        """The body of every asynchronous handler."""
        if STAMPS:
            say({"n": n, "start": time.monotonic()})
        if HANDLER_SEC:
            await asyncio.sleep(HANDLER_SEC)
        self.count()

    def handle_blocking(self, n: int) -> None:
        """The body of every blocking handler."""
        if STAMPS:
            say({"n": n, "start": time.monotonic()})
        if HANDLER_SEC:
            time.sleep(HANDLER_SEC)
        with self._counting:
            self.count()

    def wait(self, warmed: int = 0) -> None:
        """Say that everything is connected (`warmed`: after so many jobs), and come back when the frame says `go`."""
        self.done = 0
        say({"ready": True, "warmed": warmed})
        if sys.stdin.readline().strip() != "go":
            os._exit(1)  # the frame has gone
        threading.Thread(target=self._tell, daemon=True).start()
        threading.Thread(target=self._obey, daemon=True).start()

    def _tell(self) -> None:
        said = 0
        while True:
            time.sleep(SAY_SEC)
            if self.done != said:
                said = self.done
                say({"done": said})

    def _obey(self) -> None:
        """Until `stop`, or until the frame has gone: the process ends at once, as libraries end in different ways."""
        sys.stdin.readline()
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say({"done": self.done, "first": self.first, "last": self.last, "cpu": cpu(), "rss": rss})
        os._exit(0)


def rest() -> None:
    """For a program whose work is over: wait until the frame ends it."""
    threading.Event().wait()


def main(**roles: Callable[..., object]) -> None:
    """Run the role that the command line names."""
    role, *numbers = sys.argv[1:] or [""]
    if role not in roles:
        sys.exit(f"role {role!r}: there is {', '.join(roles)}")
    roles[role](*map(int, numbers))
