"""The rows of `make bench`: how each is measured, on a fresh database, through the program of a peer."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.drains import Drained, Figures, Stage, drained, enqueued, verified
from bench.peers.peer import Row
from bench.programs import Failed, Program, Workers
from bench.servers import Postgres

ALL_SLOTS = 200
HANDLER_MS = 10
BULK = "bulk_"
"""How the names of the fill's figures begin in the row `drain`."""
WARM = 20
"""The first jobs of a latency are not counted: they pay for what is made once."""


def drain(stage: Stage, row: Row) -> Figures:
    """Fill, then let the worker processes run everything. The fill is what the row `bulk` is made of."""
    number = stage.sizes.of(stage.peer)
    with stage.server.fresh() as url:
        program = prepared(stage, url, row)
        found = drained(stage, program, number)
        verified(stage, program, found)
    return Figures(found.figures() | found.cost.figures(BULK), notes=found.notes())


def bulk(stage: Stage, row: Row) -> Figures:
    """The bulk call alone."""
    return _only_enqueued(stage, row, "fill", stage.sizes.bulk(stage.peer))


def publish(stage: Stage, row: Row) -> Figures:
    """8 publishers, each job in a transaction of its own."""
    return _only_enqueued(stage, row, "publish", min(stage.sizes.published, stage.peer.jobs))


def caller(stage: Stage, row: Row) -> Figures:
    """8 publishers, each job in a transaction of the caller, which inserts a row of its own."""
    return _only_enqueued(stage, row, "caller", min(stage.sizes.published, stage.peer.jobs))


def _only_enqueued(stage: Stage, row: Row, role: str, number: int) -> Figures:
    with stage.server.fresh() as url:
        program = prepared(stage, url, row)
        if role == "caller":
            assert isinstance(stage.server, Postgres)
            stage.server.run(url, "create table bench_order (n integer not null)")
        stage.server.settle(url)
        return Figures(enqueued(stage, program, role, number).figures())


def prepared(stage: Stage, url: str, row: Row) -> Program:
    """A peer's program, with its schema made."""
    program = stage.program(url, row)
    program.do("prepare")
    return program


def handlers(stage: Stage, row: Row) -> Figures:
    """Handlers that wait 10 ms, 200 at once over all processes."""
    number = min(stage.sizes.handled, stage.peer.jobs)
    with stage.server.fresh() as url:
        program = prepared(stage, url, row)
        slots = ALL_SLOTS // stage.peer.processes
        found = drained(stage, program, number, BENCH_HANDLER_MS=str(HANDLER_MS), BENCH_SLOTS=str(slots))
        verified(stage, program, found)
    return Figures(found.figures(), notes=found.notes())


def latency(stage: Stage, row: Row) -> Figures:
    """An idle worker, and a publisher that enqueues one job every 10 ms: milliseconds from its return to the start."""
    number = stage.sizes.paced
    with stage.server.fresh() as url:
        program = prepared(stage, url, row)
        with program.workers(1, BENCH_STAMPS="1", BENCH_PROCESSES="1") as workers:
            workers.go()
            program.do("paced", WARM)
            worker = workers.each[0]
            until(lambda: worker.done >= WARM, workers, "the first jobs")
            worker.starts.clear()
            returned = {int(said["n"]): float(said["returned"]) for said in program.do("paced", number)}
            until(lambda: worker.done >= number + WARM, workers, "the last job")
            starts = dict(worker.starts)
    missing = returned.keys() - starts.keys()
    if missing:
        raise Failed(f"{stage.peer.name}: {len(missing)} jobs have no start")
    samples = tuple(max(0.0, starts[n] - at) * 1000 for n, at in returned.items())
    return Figures({}, samples)


def until(condition: Callable[[], bool], workers: Workers, what: str, cap: float = 30.0) -> None:
    """Wait for it while the workers run."""
    deadline = time.monotonic() + cap
    while not condition():
        workers.check()
        if time.monotonic() > deadline:
            raise Failed(f"{workers.each[0].name}: waited {cap:.0f} s for {what}")
        time.sleep(0.005)


# ------------------------------------------------------------------------------------------- what makes others slower


def snapshot(stage: Stage, rounds: int) -> list[Figures]:
    """Drains, and the same beside an open snapshot that keeps the rows of many finished jobs from being vacuumed."""
    after, dead = stage.sizes.after, stage.sizes.dead
    assert isinstance(stage.server, Postgres)
    with stage.server.fresh() as url:
        program = prepared(stage, url, Row.SNAPSHOT)
        without = [drained(stage, program, after) for _ in range(rounds)]
        with stage.server.snapshot(url):
            left = drained(stage, program, dead, cap=60.0)
            if left.cut:
                raise Failed(f"{stage.peer.name} did not run {dead:,} jobs within a minute")
            beside = [drained(stage, program, after) for _ in range(rounds)]
        verified(stage, program, *without, left, *beside)
    return _shares(without, beside)


def future(stage: Stage, rounds: int) -> list[Figures]:
    """Drains, and the same beside jobs that are due tomorrow, which were enqueued first."""
    after, later = stage.sizes.after, stage.sizes.future
    with stage.server.fresh() as url:
        program = prepared(stage, url, Row.FUTURE)
        without = [drained(stage, program, after) for _ in range(rounds)]
        program.do("fill", later, BENCH_DELAY_SEC="86400")
        beside = [drained(stage, program, after) for _ in range(rounds)]
        verified(stage, program, *without, *beside)
    return _shares(without, beside)


def _shares(without: list[Drained], beside: list[Drained]) -> list[Figures]:
    return [
        Figures({"rate": late.rate, "without": early.rate, "share": late.rate / early.rate}, notes=late.notes())
        for early, late in zip(without, beside, strict=True)
    ]


def lanes(stage: Stage, row: Row) -> Figures:
    """A drain of jobs that are ordered over 1,000 keys, and of as many that are not."""
    number = stage.sizes.of(stage.peer)
    rates = {}
    for name, keys in (("without", "0"), ("rate", "1000")):
        with stage.server.fresh() as url:
            program = prepared(stage, url, row)
            found = drained(stage, program, number, BENCH_KEYS=keys)
            verified(stage, program, found)
            rates[name] = found.rate
    return Figures({**rates, "share": rates["rate"] / rates["without"]})


MEASURES: dict[Row, Callable[[Stage, Row], Figures]] = {
    Row.DRAIN: drain,
    Row.DAEMON: drain,
    Row.SQLITE: drain,
    Row.BULK: bulk,
    Row.PUBLISH: publish,
    Row.CALLER: caller,
    Row.LATENCY: latency,
    Row.HANDLERS: handlers,
    Row.LANES: lanes,
}

PRELOADED: dict[Row, Callable[[Stage, int], list[Figures]]] = {Row.SNAPSHOT: snapshot, Row.FUTURE: future}
"""Rows whose rounds share a database: what is preloaded takes longer than what is measured."""
