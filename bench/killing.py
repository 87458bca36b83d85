"""The row `kill` of `make bench`: a worker is killed while it holds jobs; when has another begun all of them?

Leases and time-outs decide it, not the processor, so all peers are killed at the same moment, when everything has
started and is idle: one after the other would take half a minute each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from bench.drains import Figures, Stage
from bench.peers.peer import Row
from bench.programs import Failed, Program
from bench.rows import prepared, until

CAP_SEC = 30.0
HELD = 20
"""Jobs that a worker holds when it is killed."""
START_SEC = 120.0


class Together:
    """Those that are ready wait for the others, or for their failure."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._changed = threading.Condition()

    def arrive(self) -> None:
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._left <= 0, START_SEC)


def killed_together(
    stages: Sequence[Stage], found: Callable[[Stage, Figures], None], failed: Callable[[Stage, Failed], None]
) -> None:
    """Daemons that kill a worker of their own come one after the other, the rest at once."""
    for stage in stages:
        if stage.peer.recovers_itself:
            _report(stage, lambda one=stage: _recovered(one), found, failed)  # type: ignore[misc]
    others = [stage for stage in stages if not stage.peer.recovers_itself]
    together = Together(len(others))
    threads = [
        threading.Thread(target=_report, args=(stage, lambda one=stage: _killed(one, together), found, failed))
        for stage in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _report(
    stage: Stage,
    measure: Callable[[], Figures],
    found: Callable[[Stage, Figures], None],
    failed: Callable[[Stage, Failed], None],
) -> None:
    try:
        figures = measure()
    except Failed as error:
        failed(stage, error)
    else:
        found(stage, figures)


def _recovered(stage: Stage) -> Figures:
    with stage.server.fresh() as url:
        (said,) = prepared(stage, url, Row.KILL).do("recover", HELD)
    return _figures(None if said["seconds"] is None else float(said["seconds"]))


def _killed(stage: Stage, together: Together) -> Figures:
    arrived = False

    def arrive() -> None:
        nonlocal arrived
        arrived = True
        together.arrive()

    try:
        with stage.server.fresh() as url:
            return _figures(_again(prepared(stage, url, Row.KILL), arrive, together))
    finally:
        if not arrived:
            together.arrive()  # the others need not wait for it


def _again(program: Program, arrive: Callable[[], None], together: Together) -> float | None:
    """Seconds until the second worker has begun everything that the first one held; None: not within the cap."""
    held = {"BENCH_HANDLER_MS": "60000", "BENCH_STAMPS": "1", "BENCH_SLOTS": "100", "BENCH_PROCESSES": "1"}
    with program.workers(1, **held) as first:
        program.do("fill", HELD)
        first.go()
        victim = first.each[0]
        until(lambda: bool(victim.starts), first, "the first job to be held", START_SEC)
        time.sleep(0.5)  # it takes what it can take at once
        lost = set(victim.starts)
        with program.workers(1, **(held | {"BENCH_HANDLER_MS": "10"})) as second:
            second.go()
            arrive()
            together.wait()
            time.sleep(1.0)  # the others' last beginnings are over
            other = second.each[0]
            victim.end()
            killed = time.monotonic()
            while not lost <= other.starts.keys() and time.monotonic() < killed + CAP_SEC:
                second.check()
                time.sleep(0.005)
            again = dict(other.starts)
    return max(again[n] for n in lost) - killed if lost <= again.keys() else None


def _figures(seconds: float | None) -> Figures:
    if seconds is None:
        return Figures({"seconds": CAP_SEC}, notes=(f"not within {CAP_SEC:.0f} s",))
    if seconds < 0:
        return Figures(
            {"seconds": CAP_SEC}, notes=("the second ran them while the first was alive: its lease is short",)
        )
    return Figures({"seconds": seconds})
