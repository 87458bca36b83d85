"""`python -m orders_example.chaos`: the show. Exits 1 if the broker's log and the ledger do not agree."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from orders_example.chaos.show import shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orders_example.chaos")
    parser.add_argument("--kills", type=int, default=50, help="how many worker processes are killed (50)")
    parser.add_argument("--workers", type=int, default=3, help="how many work at once (3)")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and nobody is left behind
    with tempfile.TemporaryDirectory(prefix="orders-chaos-") as home:
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{home}/orders.db"
        began = time.monotonic()
        verdict = shown(Path(home), url, kills=given.kills, workers=given.workers)
        seconds = time.monotonic() - began
    rows = [
        ("identical orders at once", sum(verdict.at_once.values())),
        *((f"  answered {status}", number) for status, number in sorted(verdict.at_once.items(), reverse=True)),
        ("another body with their key", verdict.other),
        ("orders accepted", verdict.accepted),
        ("worker processes killed", verdict.kills),
        ("orders the broker executed", verdict.executed),
        ("orders it was asked for again", verdict.repeats),
        ("seconds", f"{seconds:.0f}"),
    ]
    sys.stdout.write("".join(f"  {name:<30} {value:>6}\n" for name, value in rows))
    sys.stdout.write("".join(f"PROBLEM {problem}\n" for problem in verdict.problems[:20]))
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
