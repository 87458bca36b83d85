"""Planner settings for todoku's statements, each for one transaction (`SET LOCAL`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import psycopg
from psycopg import sql


def set_local(settings: Mapping[str, str]) -> str:
    """The statements that set these for one transaction."""
    return "; ".join(f"set local {name} = {value}" for name, value in settings.items())


PINNED: Final = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
PIN_PLANS: Final = set_local(PINNED)
"""The queries of claim and settle are written for one plan, which stale statistics, or a plan made while the tables
were empty, must not change. Sorting stays allowed: without it the planner would scan whole indexes.
Every node of a pinned plan has an index path: one without would cost 1e10 (`tests/plans`)."""

NO_JIT: Final = {"jit": "off"}
"""todoku's queries read a few rows by indexes: a server built with LLVM would compile longer than they run."""

PLANNED: Final = {"plan_cache_mode": "force_generic_plan"}
PLAN_ONCE: Final = set_local(PLANNED)
"""The queries of claim and settle have one plan, so planning each time (0.5 to 1.5 ms) is useless."""

READING: Final = {"transaction_read_only": "on"}
"""A transaction that only reads."""


def take_over(connection: psycopg.Connection[Any], last: str) -> str:
    """Runs `last`, which ends the handler's part, then sets todoku's settings. Returns SQL that restores the first."""
    ours = NO_JIT | PINNED
    read = ", ".join(f"current_setting('{name}')" for name in ours)
    cursor = connection.execute(cast("sql.SQL", f"{last}; select {read}; {set_local(ours)}"))
    cursor.nextset()
    (theirs,) = cursor.fetchall()
    return set_local(dict(zip(ours, theirs, strict=True)))
