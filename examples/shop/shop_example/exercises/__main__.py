"""`python -m shop_example.exercises [NAME …]`: run some of them, or all, each on a database of its own."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from shop_example.exercises.duplicates import duplicates
from shop_example.exercises.event_types import event_types
from shop_example.exercises.failing import failing
from shop_example.exercises.twice import twice
from shop_example.exercises.two_publishers import two_publishers
from shop_example.exercises.typed_records import typed_records
from shop_example.settings import wait_as_the_seed_does

Exercise = Callable[[str], list[str]]
"""Takes the URL of an empty database, and returns what there is to see."""

EXERCISES: dict[str, Exercise] = {
    "event-types": event_types,
    "typed-records": typed_records,
    "failing": failing,
    "twice": twice,
    "two-publishers": two_publishers,
    "duplicates": duplicates,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for an exercise that is not there."""
    parser = argparse.ArgumentParser(prog="python -m shop_example.exercises")
    parser.add_argument("name", nargs="*", help=", ".join(EXERCISES))
    names = parser.parse_args(arguments).name or list(EXERCISES)
    if unknown := set(names) - set(EXERCISES):
        parser.error(f"there is no exercise {', '.join(sorted(unknown))}: one of {', '.join(EXERCISES)}")
    wait_as_the_seed_does(os.environ)
    for name in names:
        with TemporaryDirectory(ignore_cleanup_errors=True) as home:
            shown = EXERCISES[name](f"sqlite:///{Path(home).as_posix()}/shop.db")
        print("\n".join([f"{name}:", *(f"  {line}" for line in shown)]))
    return 0


if __name__ == "__main__":
    logging.getLogger("todoku").setLevel(logging.CRITICAL)  # some fail on purpose: the exercises show rows, not logs
    sys.exit(main())
