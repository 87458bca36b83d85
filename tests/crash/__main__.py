"""`make crash`: the crash tests' scenarios, one after the other on both databases, until the time is over.

CRASH_SECONDS is the budget (600). One line a round, the totals at the end; exit code 1 if any invariant did not hold.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.crash.conftest import PRELOADED
from tests.crash.run import Run, Verdict
from tests.crash.scenarios import OPERATIONS, SIDES, STATEMENTS, cut_commits, freeze, hunt, kill_at, restart
from tests.daemon.own_server import own_server
from tests.support import postgres
from tests.support.pack import Forks
from tests.support.proxy import Proxy
from tests.support.world import Backend, World

Scenario = Callable[["Round"], Verdict]
DURABLE = "-c fsync=on -c shared_buffers=64MB"


class Round:
    """One scenario on one fresh database."""

    def __init__(self, stack: ExitStack, forks: Forks, home: Path, dsn: str, backend: Backend, seed: int) -> None:
        self._stack = stack
        self._forks = forks
        self._dsn = dsn
        self.backend = backend
        self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=home)))
        self.chance = random.Random(seed)

    def run(self, *, url: str | None = None, proxied: str | None = None, **options: float) -> Run:
        """A run on a database of its own, or on the one named."""
        if url is None and self.backend == "postgres":
            url = self._stack.enter_context(postgres.fresh_database(self._dsn))
        world = World(self.backend, url or f"sqlite:///{self.home}/todoku.db")
        self._stack.callback(world.close)
        world.store.migrate()
        run = Run(self._forks, self.home, world, url=proxied, **options)  # type: ignore[arg-type]
        run.chance = self.chance
        self._stack.callback(run.pack.end)
        return run

    def database(self) -> str:
        """A fresh PostgreSQL database."""
        return self._stack.enter_context(postgres.fresh_database(self._dsn))


def kills_under_a_supervisor(now: Round) -> Verdict:
    run = now.run()
    hunt(run, 80, workers=3, bury=run.bury)
    return run.finish(seconds=120)


def kills_without_one(now: Round) -> Verdict:
    run = now.run(lease=3.0)
    hunt(run, 30, workers=3, bury=lambda _victim: None)
    return run.finish(seconds=120)


def failpoints(now: Round) -> Verdict:
    run = now.run()
    for number in range(20):
        run.publish(number * 1000, 14)
        kill_at(run, now.chance.choice(OPERATIONS), now.chance.choice(SIDES))
    return run.finish(seconds=120)


def zombies(now: Round) -> Verdict:
    run = now.run(lease=2.0)
    freeze(run, 5)
    return run.finish(seconds=120)


def cuts(now: Round) -> Verdict:
    url = now.database()
    proxy = Proxy(url, now.home / "proxy")
    run = now.run(url=url, proxied=proxy.url)
    cut_commits(run, proxy, now.chance.choice(list(STATEMENTS)), now.chance.choice(("before", "after")), times=20)
    try:
        return run.finish(seconds=120)
    finally:
        proxy.close()


def restarts(now: Round) -> Verdict:
    with own_server(DURABLE) as server:
        run = now.run(url=server.url, lease=3.0)
        workers = [run.worker() for _ in range(3)]
        publishers = [run.publisher(1_000_000 * place, TODOKU_TEST_PAUSE="0.01") for place in range(2)]
        for _ in range(4):
            restart(run, server, down=now.chance.choice((0.0, 0.5, 5.0)))
        assert {one.pid for one in run.pack.living} == {one.pid for one in (*workers, *publishers)}
        run.pack.drain(*publishers)
        verdict = run.finish(seconds=120)
        run.world.close()
        return verdict


SCENARIOS: dict[Backend, tuple[Scenario, ...]] = {
    "sqlite": (kills_under_a_supervisor, kills_without_one, failpoints, zombies),
    "postgres": (kills_under_a_supervisor, kills_without_one, failpoints, zombies, cuts, restarts),
}


def rounds(seconds: float) -> Iterator[tuple[int, Backend, Scenario]]:
    """Scenarios in turn, the databases alternating, until the time is over; each of them at least once."""
    ends, number = time.monotonic() + seconds, 0
    longest = max(map(len, SCENARIOS.values()))
    while number < 2 * longest or time.monotonic() < ends:
        backend: Backend = "sqlite" if number % 2 else "postgres"
        yield number, backend, SCENARIOS[backend][number // 2 % len(SCENARIOS[backend])]
        number += 1


@contextmanager
def database_server() -> Iterator[tuple[Path, str]]:
    home = Path(tempfile.mkdtemp(prefix="todoku-crash-", dir="/tmp"))
    try:
        yield home, postgres.server_dsn(home)
    finally:
        postgres.stop_server(home)


def main() -> int:
    seed = int(os.environ.get("CRASH_SEED", str(time.time_ns() % 1_000_000)))
    print(f"seed {seed} (CRASH_SEED=… repeats the choices)", flush=True)
    verdicts: list[Verdict] = []
    forks = Forks(PRELOADED)
    with database_server() as (home, dsn):
        for number, backend, scenario in rounds(float(os.environ.get("CRASH_SECONDS", "600"))):
            began = time.monotonic()
            with ExitStack() as stack:
                verdict = judged(scenario, Round(stack, forks, home, dsn, backend, seed + number))
            verdicts.append(verdict)
            print(
                f"{backend:9} {scenario.__name__:25} {time.monotonic() - began:5.1f} s  {told([verdict])}", flush=True
            )
            for problem in verdict.problems[:20]:
                print(f"  {problem}", flush=True)
    forks.close()
    print(f"{'together':35} {len(verdicts):5} runs  {told(verdicts)}")
    return 1 if any(verdict.problems for verdict in verdicts) else 0


def judged(scenario: Scenario, now: Round) -> Verdict:
    """What a round came to. One that does not come to its end is a problem, and the next one begins all the same."""
    try:
        return scenario(now)
    except AssertionError as error:
        return Verdict(
            problems=(str(error),), kills=0, faults=0, published=0, arrivals=0, duplicates=0, settled_lines=0
        )


def told(verdicts: list[Verdict]) -> str:
    """What runs came to, in one line."""
    found = [getattr(problem, "invariant", str(problem)) for verdict in verdicts for problem in verdict.problems]
    lost, doubled = found.count("I1"), sum(name in ("I3", "I5", "I6", "I13") for name in found)
    return (
        f"{sum(one.kills for one in verdicts):6} kills {sum(one.faults for one in verdicts):5} other faults "
        f"{sum(one.published for one in verdicts):7} messages "
        f"{sum(one.duplicates for one in verdicts):6} duplicates explained "
        f"{lost:4} lost {doubled:4} doubled {len(found) - lost - doubled:4} other problems"
    )


if __name__ == "__main__":
    sys.exit(main())
