"""Turns: a test of a shell runs with one of two databases or themes, and with the other one after the next commit.

A shell has no SQL: what it does on SQLite and on PostgreSQL is the same code above the store, which the conformance
suite compares. With TODOKU_TEST_TURN=<number> half of these tests run on each database; `make test` counts commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest

SHELLS = tuple(
    f"tests/{name}/"
    for name in (
        "api", "bench", "cli", "client", "daemon", "destinations", "encryption", "examples", "ingest", "integrations",
        "projections", "security", "testing", "web",
    )
)  # fmt: skip


CHOICES = {"theme": ("light", "dark"), "backend": ("sqlite", "postgres")}
"""Parameters of tests by which they take turns."""


def left_out(items: Iterable[pytest.Item], turn: int) -> list[pytest.Item]:
    """The tests whose turn it is not: of each pair of tests that differ in one choice alone, one."""
    pairs = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        call = getattr(item, "callspec", None)
        if call is None or not item.nodeid.startswith(SHELLS):
            continue
        for choice, (one, other) in CHOICES.items():
            if (chosen := call.params.get(choice)) in (one, other):
                pairs[f"{item.nodeid.partition('[')[0]} {call.id.replace(chosen, '', 1)} {choice}"].append(item)
                break
    return [
        sorted(pair, key=lambda item: item.nodeid)[(crc32(name.encode()) + turn) % 2]
        for name, pair in pairs.items()
        if len(pair) == 2
    ]
