"""`python -m tests.support.repeat …` is `pytest …`, and then runs what failed once more, alone.

What passes then is listed as flaky, with the seed of the run, and does not fail it. In some directories a first failure
fails the run all the same: there a flake is a bug of the product until it is explained.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

STRICT = ("tests/conformance/", "tests/crash/", "tests/model/", "tests/protocol/")
MOST = 25
"""So many failures are not the weather: they are not run again."""


class Judged(msgspec.Struct, frozen=True):
    """What the failures of a run came to."""

    failed: tuple[str, ...]
    """Failed twice, or was not run again."""
    unexplained: tuple[str, ...]
    """Passed alone, and fails the run because of what it protects."""
    flaky: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failed and not self.unexplained


def judge(first: Sequence[str], again: Collection[str]) -> Judged:
    """`first`: the ids of tests that failed; `again`: of those that failed alone, too."""
    passed = [test for test in first if test not in again]
    return Judged(
        failed=tuple(test for test in first if test in again),
        unexplained=tuple(test for test in passed if test.startswith(STRICT)),
        flaky=tuple(test for test in passed if not test.startswith(STRICT)),
    )


def without_group(test: str) -> str:
    """The id of a test as pytest takes it: pytest-xdist adds `@group` to it with `--dist loadgroup`."""
    head, bracket, _ = test.rpartition("]@")
    return head + "]" if bracket else test if test.endswith("]") else test.partition("@")[0]


def run(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest: its exit code, and the ids of what failed."""
    with tempfile.TemporaryDirectory() as cache:  # fresh: pytest's own remembers what failed in other runs, too
        done = subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments], check=False)
        failed = Path(cache, "v", "cache", "lastfailed")
        found = json.loads(failed.read_text()) if failed.exists() else {}
    return done.returncode, sorted({without_group(test) for test in found})


def report(judged: Judged, seed: str) -> None:
    """Say it, with what repeats it."""
    for tests, title in (
        (judged.failed, "failed, and failed again alone:"),
        (judged.unexplained, "failed and passed alone, which fails the run here: a bug until it is explained:"),
        (judged.flaky, "flaky: failed and passed alone:"),
    ):
        if tests:
            print(f"\n{title}")
        for test in tests:
            print(f"  TODOKU_TEST_SEED={seed} {sys.executable} -m pytest '{test}'")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 if everything passed, or was flaky where that is allowed."""
    seed = os.environ.setdefault("TODOKU_TEST_SEED", str(random.randrange(1 << 32)))
    os.environ.setdefault("PYTHONHASHSEED", seed)
    code, first = run(arguments)
    if code != 1 or not first:  # passed, or it was interrupted, misused or found no tests
        return code
    again = first
    if len(first) <= MOST:
        print(f"\n{len(first)} failed: once more, alone", flush=True)
        repeated, again = run(["-n", "0", "--continue-on-collection-errors", *first])
        if repeated not in (0, 1):
            again = first
    judged = judge(first, again)
    report(judged, seed)
    return 0 if judged.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
