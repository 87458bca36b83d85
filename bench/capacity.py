"""`python -m bench.capacity`: a day of 2,000,000,000 messages, second by second, from the measured cost of one.

Queues are split over databases, each with its own server. A server has so many cores, of which a part is left to
everything else. Publishing goes first, because publishers wait for it; what remains runs jobs. The day has a curve, a
burst of three times the mean at noon, and one server that is away for ten minutes in the evening: its publishers keep
their messages in a spool, and bring them afterwards. The costs are those that `make bench` prints in its drain and bulk
rows (server CPU and WAL bytes a job); a machine with other cores has others, so measure there. That cores add up is
assumed: it was measured with two.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Final

import msgspec

DAY: Final = 86_400
BURST: Final = range(12 * 3600, 12 * 3600 + 900)
AWAY: Final = range(19 * 3600, 19 * 3600 + 600)
CURVE: Final = 0.6
"""The busiest hour of a quiet day has so much more than the mean, the quietest so much less."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a message costs a server: microseconds of a core to store and to run it, bytes of log, bytes that stay."""

    publish_us: float
    run_us: float
    wal_bytes: float
    kept_bytes: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How many databases there are, the cores of each, and which part of them todoku may use."""

    databases: int
    cores: int
    used: float = 0.7


class Outlook(msgspec.Struct, frozen=True):
    """How a day went: the longest wait and the deepest backlog of a server that was never away, and of one that was."""

    longest_wait: float
    deepest: float
    wait_after_outage: float
    recovered_after: float
    busiest_core: float
    """The busiest second's share of what may be used."""


def arrivals(second: int, a_day: float) -> float:
    """Messages that come in this second of the day."""
    mean = a_day / DAY
    curve = 1.0 - CURVE * math.cos(2 * math.pi * (second - 2 * 3600) / DAY)
    return mean * max(curve, 3.0) if second in BURST else mean * curve


def simulate(a_day: float, costs: Costs, plan: Plan) -> Outlook:
    """Run one server that is never away, and one that is, through the day; every other server is as the first."""
    share = a_day / plan.databases
    steady = list(_seconds(share, costs, plan, away=range(0)))
    struck = list(_seconds(share, costs, plan, away=AWAY))
    behind = [second for second in range(AWAY.stop, DAY) if struck[second].wait > 1.0]
    return Outlook(
        longest_wait=max(one.wait for one in steady),
        deepest=max(one.backlog for one in steady),
        wait_after_outage=max(one.wait for one in struck[AWAY.stop :]),
        recovered_after=float(behind[-1] + 1 - AWAY.stop) if behind else 0.0,
        busiest_core=max(one.busy for one in steady),
    )


class _Second(msgspec.Struct, frozen=True):
    backlog: float
    wait: float
    busy: float


def _seconds(a_day: float, costs: Costs, plan: Plan, *, away: range) -> Iterator[_Second]:
    """One server, second by second: what waits in it or in the spools of its publishers, and for how long."""
    can = plan.cores * plan.used * 1e6
    whole = can / (costs.publish_us + costs.run_us)
    spooled = backlog = 0.0
    for second in range(DAY):
        spooled += arrivals(second, a_day)
        if second in away:
            yield _Second(spooled + backlog, math.inf, 0.0)
            continue
        stored = min(spooled, can / costs.publish_us)
        spooled, backlog = spooled - stored, backlog + stored
        run = min(backlog, (can - stored * costs.publish_us) / costs.run_us)
        backlog -= run
        busy = (stored * costs.publish_us + run * costs.run_us) / can
        yield _Second(spooled + backlog, (spooled + backlog) / whole, busy)


def fewest(a_day: float, costs: Costs, *, cores: int, longest_wait: float) -> Plan:
    """The smallest number of databases with which nothing waits longer than this, but for the outage."""
    number = 1
    while simulate(a_day, costs, plan := Plan(databases=number, cores=cores)).longest_wait > longest_wait:
        number += 1
    return plan


def main() -> None:
    """Print the outlook of one number of databases less than enough, enough, and twice as many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a-day", type=float, default=2e9, help="messages a day")
    parser.add_argument("--cores", type=int, default=4, help="of each database server")
    parser.add_argument("--publish-us", type=float, default=24.0, help="server CPU to store one message")
    parser.add_argument("--run-us", type=float, default=42.0, help="server CPU to claim and settle one delivery")
    parser.add_argument("--wal-bytes", type=float, default=1_900.0, help="of one message, from publish to settle")
    parser.add_argument("--kept-bytes", type=float, default=450.0, help="message and history row, with their indexes")
    parser.add_argument("--longest-wait", type=float, default=1.0, help="seconds, in the busiest minute")
    given = parser.parse_args()
    costs = Costs(
        publish_us=given.publish_us, run_us=given.run_us, wal_bytes=given.wal_bytes, kept_bytes=given.kept_bytes
    )
    enough = fewest(given.a_day, costs, cores=given.cores, longest_wait=given.longest_wait)
    mean = given.a_day / DAY
    print(f"{given.a_day:,.0f} messages a day: {mean:,.0f} a second, {3 * mean:,.0f} at noon")
    log, kept = given.a_day * costs.wal_bytes / 1e12, given.a_day * costs.kept_bytes / 1e12
    print(f"log {log:,.2f} TB a day, kept {kept:,.2f} TB a day")
    for databases in sorted({max(1, enough.databases - 1), enough.databases, enough.databases * 2}):
        plan = Plan(databases=databases, cores=given.cores)
        found = simulate(given.a_day, costs, plan)
        print(
            f"{databases} databases of {plan.cores} cores: longest wait {found.longest_wait:,.1f} s, deepest backlog "
            f"{found.deepest:,.0f}, busiest second {found.busiest_core:.0%}; after ten minutes away: up to "
            f"{found.wait_after_outage:,.0f} s, caught up after {found.recovered_after:,.0f} s"
        )


if __name__ == "__main__":
    main()
