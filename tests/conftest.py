"""What every test gets: a clean environment, chance that can be repeated, and a table of skipped tests at the end."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.turns import left_out

pytest_plugins = ["tests.support.fixtures"]

# What the product reads from the environment must not change a test; TODOKU_TEST_… is for the tests.
for name in list(os.environ):
    if name == "DATABASE_URL" or (name.startswith(("TODOKU_", "OUTBOX_")) and not name.startswith("TODOKU_TEST_")):
        del os.environ[name]

# On a busy machine whoever holds a lock may be kept from going on for longer than a publisher should wait for it.
os.environ["TODOKU_LOCK_TIMEOUT_SEC"] = "30"

# An example has no time limit, and is the same in every run: a new one is looked for with TODOKU_TEST_EXPLORE=1.
settings.register_profile(
    "todoku",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="TODOKU_TEST_EXPLORE" not in os.environ,
)
settings.register_profile("unit", settings.get_profile("todoku"), max_examples=20)  # for `make test-unit`
settings.load_profile("todoku")

# Compiled modules are kept: hundreds of processes would compile them anew, and each worker of pytest its tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A run in the background ignores Ctrl-C, and every process that a test starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Chance: every test begins with `random` as the seed of the run says. TODOKU_TEST_SEED=<number> repeats a run's.
SEED = os.environ.setdefault("TODOKU_TEST_SEED", str(random.randrange(1 << 32)))
os.environ.setdefault("PYTHONHASHSEED", SEED)  # of the processes that pytest-xdist and the tests start


def pytest_report_header() -> str:
    return f"seed: {SEED} (repeat with TODOKU_TEST_SEED={SEED})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The limit of a slow test is for hangs, too: on a busy machine some take longer than what others are allowed."""
    if turn := os.environ.get("TODOKU_TEST_TURN"):
        waiting = left_out(items, int(turn))
        config.hook.pytest_deselected(items=waiting)
        out = {item.nodeid for item in waiting}
        items[:] = [item for item in items if item.nodeid not in out]
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    random.seed(f"{SEED} {request.node.nodeid.partition('@')[0]}")


def reason_of(report: Any) -> str:
    """The sentence behind a skip: reports carry (path, line, 'Skipped: why')."""
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ") or "no reason given"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    yield  # first everybody else, so that the table is the last thing to read
    # By node id, because each xdist worker reports a module that skips itself while it is collected.
    reasons = {report.nodeid: reason_of(report) for report in terminalreporter.stats.get("skipped", ())}
    terminalreporter.write_line("")
    terminalreporter.write_line(f"seed: {SEED}")
    # Each reason ends with the one command that would make it run: tests/architecture/test_tests.py.
    terminalreporter.write_line(f"skipped: {len(reasons)}", bold=True)
    for reason, count in sorted(Counter(reasons.values()).items()):
        terminalreporter.write_line(f"  {count:>5}  {reason}")
