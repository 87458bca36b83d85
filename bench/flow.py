"""`make bench-flow`: runs of ten steps that do nothing, todoku's, DBOS's and Absurd's in turns; and runs that wait.

Each peer has two worker processes on one PostgreSQL server, and as many runs at once as it did best with in a short
trial. A run is started before the workers begin, and counted when it has ended; the rate is steps a second. Then a
daemon has nothing to do, first alone, then beside 100,000 runs that wait for a signal: its processor time, the
server's, and its transactions. `--quick` is a tenth of the work, `--only NAME` one peer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.bars import Bar, report
from bench.drains import Sizes, Stage, drained
from bench.idle import idle_daemon
from bench.peers.installing import install
from bench.peers.peer import Installed, NotInstalled, Own, Peer, Row, Server, Venv
from bench.programs import Failed
from bench.servers import Postgres, Running
from tests.support.postgres import VERSION
from todoku.app import App
from todoku.engine.flows.flow import Flow

STEPS = 10
ROUNDS = 3
CAP_SEC = 30.0
SLOTS = (25, 100, 400)
"""Runs at once in a process, of which each peer gets what it does best with."""
PARKED = 100_000
WAITING = '@box.workflow(queue="bench")\nasync def waiting(ctx: todoku.Flow) -> None:\n    await ctx.wait("go")\n'

PEERS: tuple[Peer, ...] = (
    Peer(
        name="todoku", title="todoku", server=Server.POSTGRES, install=Own(), program="todoku_flow_program.py",
        settings="", unfinished="select count(*) from todoku_delivery", jobs=10_000,
    ),
    Peer(
        name="dbos", title="DBOS", server=Server.POSTGRES,
        install=Venv(("dbos==3.3.0", "psycopg[binary]==3.3.9")), program="dbos_flow_program.py",
        settings="polls every 10 ms", jobs=1_000, starts_on_go=True,
        unfinished="select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')",
    ),
    Peer(
        name="absurd", title="Absurd", server=Server.POSTGRES,
        install=Venv(("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9")),
        program="absurd_flow_program.py", settings="4 workers a process, polls every 10 ms", jobs=3_000,
        unfinished="select count(*) from absurd.t_bench where state not in ('completed', 'failed', 'cancelled')",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """A peer that is here, and the runs at once that it does best with."""

    peer: Peer
    installed: Installed
    slots: int = SLOTS[0]

    def measure(self, server: Running, number: int) -> float:
        """Steps a second, on an empty database. Failed: it did not do it."""
        with server.fresh() as url:
            stage = Stage(self.peer, self.installed, server, Sizes())
            program = stage.program(url, Row.DRAIN)
            program.do("prepare")
            return drained(stage, program, number, cap=CAP_SEC, BENCH_SLOTS=str(self.slots)).rate * STEPS


def steps(server: Running, contenders: Sequence[Contender], scale: int) -> dict[str, float]:
    """The median rate of each, after a trial of how many runs at once are best for it."""
    rates: dict[str, list[float]] = {}
    best = [chosen(server, one, scale) for one in contenders]
    for turn in range(1, ROUNDS + 1):
        for one in best:
            rates.setdefault(one.peer.name, []).append(one.measure(server, one.peer.jobs // scale))
            print(f"  round {turn} of {ROUNDS}: {one.peer.name} {rates[one.peer.name][-1]:,.0f} steps/s", flush=True)
    return {name: statistics.median(found) for name, found in rates.items()}


def chosen(server: Running, one: Contender, scale: int) -> Contender:
    """The contender with the runs at once that were fastest in a fifth of the work."""
    found = {}
    for slots in SLOTS:
        found[slots] = replace(one, slots=slots).measure(server, max(50, one.peer.jobs // scale // 5))
        print(f"  trial: {one.peer.name}, {slots} runs at once: {found[slots]:,.0f} steps/s", flush=True)
    return replace(one, slots=max(found, key=lambda slots: found[slots]))


def here(only: str | None) -> list[Contender]:
    """Who can be had; the others are named and passed over."""
    found = []
    for peer in PEERS:
        if only not in (None, peer.name):
            continue
        try:
            found.append(Contender(peer, install(peer)))
        except NotInstalled as error:
            print(f"  {peer.title}: passed over: {error}", flush=True)
    return found


# ------------------------------------------------------------------------------------------------------- what waits


def waiting_costs(server: Running, number: int, *, watched: float) -> list[Bar]:
    """An idle daemon alone, and beside so many runs that wait for a signal."""
    with server.fresh() as url:
        box = App(url)
        box.migrate()
        alone = idle(server, url, watched)
        park(box, number)
        server.settle(url)
        beside = idle(server, url, watched)
        box.close()
    for name, found in (("idle", alone), (f"idle beside {number:,} runs that wait", beside)):
        print(f"  {name}: daemon {found[0]:.2f} % of a core, server {found[1]:.2f} %, {found[2]:.1f} transactions/s")
    return [
        Bar("flow_parked_daemon_percent_more", beside[0] - alone[0], 0.2, " %", at_most=True),
        Bar("flow_parked_server_percent_more", beside[1] - alone[1], 0.5, " %", at_most=True),
    ]


def idle(server: Running, url: str, watched: float) -> tuple[float, float, float]:
    """Percent of a core of the daemon and of the server, which includes the daemon's start; transactions a second."""
    used, began = server.used(), time.monotonic()
    share, transactions = idle_daemon(url, WAITING, watched=watched)
    spent = server.used().since(used).cpu / (time.monotonic() - began)
    return share * 100, spent * 100, transactions


def park(box: App, number: int) -> None:
    """Starts so many runs, and lets them come to their wait."""

    @box.workflow(queue="bench")
    async def waiting(ctx: Flow) -> None:
        await ctx.wait("go")

    began = time.monotonic()
    for _ in range(0, number, 10_000):
        box.enqueue_many([waiting.call() for _ in range(min(number, 10_000))], tx=None)
    box.drain()
    print(f"  {number:,} runs began and parked in {time.monotonic() - began:.0f} s", flush=True)


# ------------------------------------------------------------------------------------------------------------- bars


def bars_of(rates: dict[str, float]) -> list[Bar]:
    """Ours beside the better one of the others."""
    others = [rate for name, rate in rates.items() if name != "todoku"]
    bars = [Bar(f"flow_{name}_steps_per_second", rate, 0.0, "/s") for name, rate in rates.items()]
    if "todoku" in rates and others:
        bars.append(Bar("flow_steps_vs_better_peer", rates["todoku"] / max(others), 2.0, " x"))
    return bars


def main() -> None:
    """Measure, and report the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", choices=[peer.name for peer in PEERS], help="one peer")
    parser.add_argument("--part", choices=("steps", "parked"), help="one part")
    options = parser.parse_args()
    scale, bars = 10 if options.quick else 1, []
    server = Postgres(VERSION)
    print(f"  {server.about}", flush=True)
    try:
        if options.part != "parked":
            bars += bars_of(steps(server, here(options.only), scale))
        if options.part != "steps":
            bars += waiting_costs(server, PARKED // scale, watched=30.0)
    except Failed as error:
        print(f"  failed: {error}", flush=True)
    finally:
        server.stop()
    report(bars)


if __name__ == "__main__":
    main()
