"""A fill and a drain of one peer: what `make bench` measures most of its rows by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.peer import Installed, Peer, Row
from bench.programs import Failed, Program, Workers
from bench.servers import Running, Used

CAP_SEC = 20.0
"""A drain that takes longer is cut off, and its rate is that of the time until then."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work each row has."""

    jobs: int = 100_000
    published: int = 6_000
    paced: int = 700
    handled: int = 20_000
    dead: int = 200_000
    after: int = 100_000
    """Drained beside dead rows or future jobs."""
    future: int = 1_000_000

    def of(self, peer: Peer) -> int:
        """A drain of this peer."""
        return min(self.jobs, peer.jobs)

    def bulk(self, peer: Peer) -> int:
        """A bulk row of this peer."""
        return min(self.jobs, peer.bulk_jobs or peer.jobs)


QUICK = Sizes(jobs=10_000, published=800, paced=200, handled=8_000, dead=20_000, after=5_000, future=50_000)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one measurement found, by name; `samples` are milliseconds, to be pooled."""

    values: dict[str, float]
    samples: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A peer, its server, and how much there is to do."""

    peer: Peer
    installed: Installed
    server: Running
    sizes: Sizes

    def program(self, url: str, row: Row) -> Program:
        return Program(self.peer, self.installed, url, row)


@dataclass(frozen=True, slots=True)
class Cost:
    """What enqueueing cost: jobs a second, microseconds of the client and of the server, bytes of the log, each."""

    rate: float
    client_us: float
    server_us: float
    wal: float

    def figures(self, prefix: str = "") -> dict[str, float]:
        return {
            f"{prefix}rate": self.rate, f"{prefix}client_us": self.client_us, f"{prefix}server_us": self.server_us,
            f"{prefix}wal": self.wal,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drained:
    """A drain: jobs that ran, seconds from `go` until nothing was unfinished, and what it cost."""

    done: int
    seconds: float
    worker_cpu: float
    memory: int
    used: Used
    cost: Cost
    """Of the fill before it."""
    warmed: int
    """Jobs that the workers ran before they were ready, in order to be warm."""
    cut: bool

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    def figures(self) -> dict[str, float]:
        each = 1e6 / max(1, self.done)
        return {
            "rate": self.rate, "worker_us": self.worker_cpu * each, "server_us": self.used.cpu * each,
            "wal": self.used.wal / max(1, self.done), "wal_mb": self.used.wal / 1e6, "memory_mb": self.memory / 1e6,
        }  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        return (f"cut off after {CAP_SEC:.0f} s",) if self.cut else ()


def enqueued(stage: Stage, program: Program, role: str, number: int, **environ: str) -> Cost:
    """Let the program enqueue so many, and see what that costs."""
    used = stage.server.used()
    (said,) = program.do(role, number, **environ)
    spent, each = stage.server.used().since(used), 1e6 / number
    return Cost(number / float(said["seconds"]), float(said["cpu"]) * each, spent.cpu * each, spent.wal / number)


def drained(stage: Stage, program: Program, number: int, *, cap: float = CAP_SEC, **environ: str) -> Drained:
    """Connect the workers, fill so many jobs, and let the workers run them."""
    peer, server = stage.peer, stage.server
    with program.workers(peer.processes, **environ) as workers:
        cost = enqueued(stage, program, "fill", number, **environ)
        server.settle(program.url)
        used, cpu = server.used(), workers.cpu()
        began = workers.go()
        finished = until_done(workers, lambda: server.count(program.url, peer.unfinished), number, began + cap)
        worker_cpu, memory, spent = workers.cpu() - cpu, workers.memory(), server.used().since(used)
        workers.stop()
        done = workers.done
    if finished is None:
        if not done:
            raise Failed(f"{peer.name} ran nothing within {cap:.0f} s")
        return Drained(done, cap, worker_cpu, memory, spent, cost, workers.warmed, cut=True)
    if done != number:
        raise Failed(f"{peer.name} ran {done:,} jobs instead of {number:,}")
    took = max(workers.last, finished) - began
    return Drained(done, took, worker_cpu, memory, spent, cost, workers.warmed, cut=False)


def until_done(workers: Workers, unfinished: Callable[[], int], number: int, deadline: float) -> float | None:
    """The moment at which nothing was unfinished any more; None: the time was up before.

    The server answers for the moment at which it was asked, and may count for a while: beside a million future jobs 70
    ms, a tenth of a drain.
    """
    while (asked := time.monotonic()) < deadline:
        if workers.done >= number:
            if unfinished() == 0:
                return asked
        else:
            workers.check()
        time.sleep(0.002)
    return None


def verified(stage: Stage, program: Program, *drains: Drained) -> None:
    """Of todoku: every invariant holds, and history has as many jobs as were enqueued."""
    if not stage.peer.history or any(one.cut for one in drains):
        return
    program.do("verify")
    number = sum(one.done + one.warmed for one in drains)
    kept = stage.server.count(program.url, stage.peer.history)
    if kept != number:
        raise Failed(f"{stage.peer.name}: history has {kept:,} jobs instead of {number:,}")
