"""What is done to the processes of a run, and to its database: each a function that tests and the long run share."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.crash.run import Run
from tests.daemon.own_server import OwnServer
from tests.support.checker import Fault
from tests.support.pack import Member, until
from tests.support.proxy import Proxy, Side

OPERATIONS = ("claim", "claim_suspect", "claim_lanes", "settle", "transact", "renew", "reclaim", "release", "end_lease")
"""What a worker writes between its first claim and its last commit."""

SIDES = ("before_commit", "after_commit")

STATEMENTS = {
    "publish": ("insert into todoku_message", None),
    "claim": (r"status = 'sending', worker_id", "todoku_lane set"),
    "settle": ("insert into todoku_history", "crash_effect"),
    "transact": ("insert into crash_effect", None),
}
"""What is said to PostgreSQL in a transaction of each kind, and what is not."""


# ------------------------------------------------------------------------------------------------------------ kills


def kill_at(run: Run, operation: str, side: str) -> None:
    """A worker dies at this failpoint, and its supervisor ends its lease."""
    arm = f"{operation}.{side}=kill"
    match operation:
        case "claim_suspect":  # there must be some
            run.leave_suspects()
            worker = run.worker(TODOKU_TEST_ARM=arm)
        case "renew":  # while something is held: attempts take longer than a beat
            worker = run.worker(TODOKU_TEST_ARM=f"{arm}@1", TODOKU_TEST_WORK="0.2", TODOKU_LEASE_SEC="2")
        case "release":  # a claim whose reply was lost: it finds what it owns and does not know, and gives it back (H3)
            worker = run.worker(TODOKU_TEST_ARM=f"claim.after_commit=lose,{arm}")
        case "end_lease":  # its last act
            worker = run.worker(TODOKU_TEST_ARM=arm, TODOKU_TEST_WORK="0.01")
            run.until_begun(worker)
            run.pack.ask_to_drain(worker)
        case _:
            worker = run.worker(TODOKU_TEST_ARM=arm)
    run.pack.until_killed(worker)
    run.bury(worker)


def hunt(run: Run, kills: int, *, workers: int, bury: Callable[[Member], None], first: int = 0, **environ: str) -> None:
    """Kill workers one after the other, each while it is at work and something is being published."""
    pack = [run.worker(**environ) for _ in range(workers)]
    publisher = run.publisher(first)
    for number in range(1, kills + 1):
        place = run.chance.randrange(workers)
        victim = pack[place]
        run.until_begun(victim, run.chance.randrange(1, 8))
        run.pack.kill(victim)
        bury(victim)
        pack[place] = run.worker(**environ)
        if number % 8 == 0:  # and now and then a publisher: what it was told is stored stays stored
            run.pack.kill(publisher)
            publisher = run.publisher(first + 1_000_000 * number)
    run.pack.drain(publisher)


# ------------------------------------------------------------------------------------------------------------ stops


def freeze(run: Run, times: int) -> None:
    """Stop workers at work for longer than their lease, one after the other, while others go on."""
    pack = [run.worker(TODOKU_TEST_WORK="0.02") for _ in range(3)]
    publisher = run.publisher(0, TODOKU_TEST_PAUSE="0.02")
    for _ in range(times):
        zombie = run.chance.choice(pack)
        run.until_begun(zombie, run.begun(zombie.pid) + 1)
        run.stop(zombie)
        stopped = time.monotonic()
        until(lambda: time.monotonic() > stopped + 1.3 * run.lease, "the lease to be over")  # noqa: B023 - at once
        run.pack.resume(zombie)
        incarnations = len(run.notes.workers_of(zombie.pid))
        until(lambda: len(run.notes.workers_of(zombie.pid)) > incarnations, "it to notice")  # noqa: B023 - at once
    run.pack.drain(publisher)


# ------------------------------------------------------------------------------------------------- the database


def cut_commits(run: Run, proxy: Proxy, operation: str, side: Side, *, times: int) -> None:
    """Cut connections while a COMMIT of this kind is on the wire."""
    for _ in range(2):
        run.worker()
    publisher = run.publisher(0, TODOKU_TEST_PAUSE="0.01")
    until(lambda: run.begun() > 20, "work to be under way")
    matches, unless = STATEMENTS[operation]
    proxy.cut(side, matches, unless=unless, times=times, pause=0.2)
    until(lambda: not proxy.waits and len(proxy.cuts) == times, f"{times} cuts")
    acknowledged = run.acknowledged()
    until(lambda: run.acknowledged() > acknowledged + 20, "everybody to go on")
    run.pack.faults += [Fault("cut", cut.pid, cut.at, cut.at) for cut in proxy.cuts]
    run.pack.drain(publisher)


def restart(run: Run, server: OwnServer, *, down: float) -> None:
    """Stop the server as a power failure does, under load; start it again after `down` seconds; all go on."""
    acknowledged, begun = run.acknowledged(), run.begun()
    until(lambda: run.begun() > begun + 50, "work to be under way")
    stopped, refused = time.monotonic(), len(run.refused())
    server.stop()
    until(lambda: len(run.refused()) > refused and time.monotonic() > stopped + down, "publishers to be told")
    server.start()
    begun = run.begun()
    until(lambda: run.acknowledged() > acknowledged + 20, "publishers to go on")
    until(lambda: run.begun() > begun + 20, "workers to go on")
    run.pack.faults.append(Fault("outage", None, stopped, time.monotonic()))
