"""The invariants of the protocol (docs/glossary.md), each as a query that finds the rows that break it."""

from __future__ import annotations

from typing import Any

from todoku.store.database import Tx
from todoku.store.lanes import REMOVED


def find_broken(tx: Tx, *, history_ttl: float, ledger_ttl: float, most: int) -> dict[str, tuple[str, ...]]:
    """The invariants that do not hold in this snapshot, by name, each with at most `most` examples."""
    found: dict[str, tuple[str, ...]] = {}
    values: dict[str, Any] = {
        "history_ttl": history_ttl,
        "ledger_ttl": ledger_ttl,
        "most": most,
        "gone": sorted(REMOVED),
    }
    for name in (
        "acknowledged",
        "message",
        "one_state",
        "finished_once",
        "reserved",
        "owner",
        "orphan",
        "lane_owner",
        "epoch",
        "attempts",
        "token",
        "ledger",
        "replays",
        "lane",
        "parked",
        "lane_time",
        "gate",
        "gate_running",
        "gate_time",
        "batch",
        "batch_due",
        "tried",
        "endpoint",
        "clock",
    ):
        if rows := tx.rows(f"verify_{name}", **values):
            found[name] = tuple(example for (example,) in rows)
    return found
