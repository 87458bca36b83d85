"""Removing what nobody needs any more, in small transactions: a long one would hold everybody else up."""

from __future__ import annotations

from typing import Final

from todoku.store import line
from todoku.store.database import Database, Tx
from todoku.store.values import Pruned

_INBOX_TTL: Final = 90 * 86_400.0
_DAYS_AHEAD: Final = 7


def prune(database: Database, *, history_ttl: float, limit: int) -> Pruned:
    """Everything whose retention has passed; and partitions for the days to come."""
    database.write("prune", lambda tx: tx.rows("prepare_history", days=_DAYS_AHEAD))
    return Pruned(
        messages=_messages(database, history_ttl, limit),
        ledger=_repeated(database, "prune_ledger", limit),
        attempts=_repeated(database, "prune_attempts", limit, ttl=history_ttl),
        results=_repeated(database, "prune_results", limit, ttl=history_ttl),
        inbox=_repeated(database, "prune_inbox", limit, ttl=_INBOX_TTL),
        history=database.write("prune", lambda tx: int(tx.rows("prune_history", ttl=history_ttl)[0][0])),
        stray=database.read(lambda tx: int(tx.rows("stray_history")[0][0])),
    )


def _messages(database: Database, ttl: float, limit: int) -> int:
    removed, after, more = 0, 0, True
    while more:
        position = after
        ((number, last, more),) = database.write(
            "prune",
            lambda tx: tx.rows("prune_messages", ttl=ttl, after=position, most=limit),  # noqa: B023 - runs at once
        )
        removed += number
        after = last if last is not None else after
    return removed


def _repeated(database: Database, query: str, limit: int, **values: float) -> int:
    removed = 0
    while True:
        number = len(database.write("prune", lambda tx: tx.rows(query, most=limit, **values)))
        removed += number
        if number < limit:
            return removed


def abort_unknown(database: Database, *, after: float, limit: int) -> int:
    """Abort what has waited `after` seconds for a destination that no worker has announced in that time."""

    def strangers(tx: Tx) -> set[tuple[str, str]]:
        known = {name for (name,) in tx.rows("announced", after=after)}
        waiting = line.waiting(tx, None)
        places = {(queue, name) for queue, name, _ in waiting.groups} | {*waiting.suspects, *waiting.lanes}
        return {(queue, name) for queue, name in places if name not in known}

    def abort(tx: Tx, queue: str, destination: str) -> int:
        rows = tx.rows("abort_unknown", queue=queue, destination=destination, after=after, most=limit)
        if lanes := sorted({lane for _, lane in rows if lane is not None}):
            tx.rows("refresh_lanes", lanes=lanes, unpark=False)
        return len(rows)

    places = sorted(database.read(strangers))
    return sum(database.write("expire", lambda tx: abort(tx, *place)) for place in places)  # noqa: B023 - runs at once
