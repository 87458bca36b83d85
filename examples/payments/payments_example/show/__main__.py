"""`python -m payments_example.show [--payments 200] [--mode embedded|queue]`: exits 1 if anything is lost or wrong."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from payments_example.show.acts import Stage, embedded, queue
from payments_example.show.story import told


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m payments_example.show")
    parser.add_argument("--payments", type=int, default=200)
    parser.add_argument("--mode", choices=["embedded", "queue"], default="embedded")
    parser.add_argument("--seed", type=int, default=4)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and nobody is left behind
    with tempfile.TemporaryDirectory(prefix="payments-show-") as home:
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{home}/payments.db"
        story = told(given.payments, random.Random(given.seed))  # noqa: S311 - the same story every time
        with Stage(Path(home), url, given.mode) as stage:
            result = (embedded if given.mode == "embedded" else queue)(stage, story)
    width = max(len(name) for name, _ in result.lines)
    print("\n".join(f"  {name:{width}}  {value:>8}" for name, value in result.lines))
    for problem in result.problems[:20]:
        print(f"PROBLEM {problem}")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
