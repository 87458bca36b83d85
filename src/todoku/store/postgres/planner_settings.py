"""Settings of the planner under which our own statements run, each for one transaction (`SET LOCAL`)."""

from __future__ import annotations

from typing import Any, Final, cast

import psycopg
from psycopg import sql

PIN_PLANS: Final = "set local enable_seqscan = off; set local enable_bitmapscan = off"
"""The queries of the line are written for one plan, and neither stale statistics nor a plan made while the tables were
empty may talk the planner out of it. Sorting stays allowed: forbidden, it is avoided by walking whole indexes.
Every node of a pinned plan has an index path: one without would cost 1e10 (`tests/plans`)."""

NO_JIT: Final = "set local jit = off"
"""Our queries read a few rows by indexes: a server that was built with LLVM would compile for longer than they run."""

PLAN_ONCE: Final = "set local plan_cache_mode = force_generic_plan"
"""The line's queries have one plan, so making it again each time (0.5 to 1.5 ms) buys nothing."""

_CHANGED: Final = ("jit", "enable_seqscan", "enable_bitmapscan")


def take_over(connection: psycopg.Connection[Any], last: str) -> str:
    """Run `last`, which ends the handler's part, then set ours. Returns what restores the handler's settings."""
    read = ", ".join(f"current_setting('{name}')" for name in _CHANGED)
    cursor = connection.execute(cast("sql.SQL", f"{last}; select {read}; {PIN_PLANS}; {NO_JIT}"))
    cursor.nextset()
    (theirs,) = cursor.fetchall()
    return "; ".join(f"set local {name} = {value}" for name, value in zip(_CHANGED, theirs, strict=True))
