"""The invariants of the protocol (docs/glossary.md), each as a query that finds the rows that break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from todoku.store.database import Tx
from todoku.store.lanes import REMOVED


def find_broken(
    tx: Tx, *, history_ttl: float, ledger_ttl: float, most: int, progress: Callable[[int], None] = lambda _checked: None
) -> dict[str, tuple[str, ...]]:
    """The invariants that do not hold in this snapshot, by name, each with at most `most` examples.

    `progress` is called with the number of those that were checked.
    """
    found: dict[str, tuple[str, ...]] = {}
    values: dict[str, Any] = {
        "history_ttl": history_ttl,
        "ledger_ttl": ledger_ttl,
        "most": most,
        "gone": sorted(REMOVED),
    }
    names = (
        "acknowledged", "message", "one_state", "finished_once", "reserved", "owner", "orphan", "lane_owner",
        "epoch", "attempts", "token", "ledger", "replays", "lane", "parked", "lane_time", "gate", "gate_running",
        "gate_time", "batch", "batch_due", "tried", "endpoint", "clock", "step", "signal", "woken",
        "undone",
    )  # fmt: skip
    for number, name in enumerate(names, start=1):
        if rows := tx.rows(f"verify_{name}", **values):
            found[name] = tuple(example for (example,) in rows)
        progress(number)
    return found
