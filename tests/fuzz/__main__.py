"""`make fuzz SECONDS=60`: hostile requests and hostile answers to a real daemon on each store, until the time is over.

`SEED=7` repeats a run. Each input that went wrong is written to `.fuzz/`; `--replay FILE` sends it once more, alone.
Exit code 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.inputs import Failure, read, write
from tests.fuzz.run import Tally, fuzz_receivers, fuzz_requests, send_again
from tests.fuzz.target import Target, target
from tests.support import postgres

FAILURES = Path(".fuzz")
STORES = ("sqlite", "postgres")
KINDS = ("5xx", "hang", "lost body", "error in the log", "memory", "the daemon ended")


@contextmanager
def daemon_on(store: str, home: Path) -> Iterator[Target]:
    """A daemon on a fresh database of this kind."""
    place = Path(tempfile.mkdtemp(dir=home))
    if store == "sqlite":
        with target(place, f"sqlite:///{place}/todoku.db", store) as found:
            yield found
    else:
        with postgres.fresh_database(postgres.server_dsn(home)) as url, target(place, url, store) as found:
            yield found


def run(seconds: float, seed: int, home: Path) -> Tally:
    """Both edges on both stores, a quarter of the time each."""
    total = Tally()
    for store in STORES:
        for fuzz in (fuzz_requests, fuzz_receivers):
            with daemon_on(store, home) as found:
                tally = Tally()
                end = time.monotonic() + seconds / (2 * len(STORES))
                fuzz(found, seed, lambda end=end: time.monotonic() < end, tally)  # type: ignore[misc]
            print(f"{store:<9} {fuzz.__name__:<15} {_line(tally)}", flush=True)
            _add(total, tally)
    return total


def _add(total: Tally, tally: Tally) -> None:
    total.inputs += tally.inputs
    total.statuses += tally.statuses
    total.bodies += tally.bodies
    total.healthy += tally.healthy
    total.failures += tally.failures
    total.grown.append(_growth(tally))


def _growth(tally: Tally) -> int:
    return tally.grown[-1] - tally.grown[0] if tally.grown else 0


def _line(tally: Tally) -> str:
    kinds = ", ".join(f"{sum(each.what.startswith(kind) for each in tally.failures)} {kind}" for kind in KINDS[:3])
    return (
        f"{sum(tally.inputs.values())} inputs, {kinds}; {tally.bodies} bodies looked for, "
        f"{tally.healthy} health checks served, memory {_growth(tally):+} KB"
    )


def report(total: Tally, seed: int) -> None:
    """The figures by edge, and where the failing inputs are."""
    print("\ninputs by edge")
    for edge, number in sorted(total.inputs.items()):
        print(f"  {number:>8}  {edge}")
    print(
        "answers by status: " + ", ".join(f"{status} × {number}" for status, number in sorted(total.statuses.items()))
    )
    print(f"\nseed {seed}: {sum(total.inputs.values())} inputs over {len(total.inputs)} edges; "
          f"{total.bodies} bodies looked for; {total.healthy} health checks served meanwhile")  # fmt: skip
    for kind in KINDS:
        print(f"  {sum(each.what.startswith(kind) for each in total.failures):>4}  {kind}")
    print(f"  memory of each daemon after its first rounds: {', '.join(f'{grown:+} KB' for grown in total.grown)}")
    for failure in total.failures[:100]:
        file = write(failure, FAILURES)
        print(f"{failure.what[:200]}\n  again: python -m tests.fuzz --replay {file}")


def replay(failure: Failure, home: Path) -> Tally:
    """Send one input again, to a daemon of its own."""
    tally = Tally()
    with daemon_on(failure.store, home) as found:
        send_again(found, failure.input, tally)
    return tally


def main() -> int:
    given = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    given.add_argument("--seconds", type=float, default=60.0)
    given.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given.add_argument("--replay", type=Path, metavar="FILE")
    asked = given.parse_args()
    home = Path(tempfile.mkdtemp(prefix="todoku-fuzz-"))
    home.chmod(0o755)
    try:
        if asked.replay is not None:
            tally = replay(read(asked.replay), home)
            print(
                "\n".join(each.what for each in tally.failures) or f"nothing went wrong: answers {dict(tally.statuses)}"
            )
        else:
            print(f"seed {asked.seed}", flush=True)
            tally = run(asked.seconds, asked.seed, home)
            report(tally, asked.seed)
    finally:
        postgres.stop_server(home)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
